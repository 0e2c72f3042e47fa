package contract

// Version is that of operator and agent. The linker writes it (build/image), so it must stay a variable of a constant: into
// anything else it writes nothing, in silence.
var Version = "(devel)"
