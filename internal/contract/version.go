package contract

// Version is the version of the operator and the agent. The linker sets it (build/image). It must stay a variable that is initialized with
// a constant: the linker silently ignores any other.
var Version = "(devel)"
