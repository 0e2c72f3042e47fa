#include "textflag.h"

DATA ·handlerPC(SB)/8, $·handler(SB)
GLOBL ·handlerPC(SB), NOPTR, $8

// handler(DI: signal, SI: *siginfo_t, DX: *ucontext_t) follows C's calling convention, which lets it use AX, CX and R8. It leaves the
// arguments and the stack unchanged for the runtime's handler, which returns in its place.
TEXT ·handler(SB), NOSPLIT|NOFRAME, $0
	CMPL DI, $64
	JHI  go
	MOVL 8(SI), AX  // si_code: SI_USER is 0
	ORL  16(SI), AX // si_pid
	JNE  go
	MOVL DI, CX
	LEAQ ·came(SB), R8
	MOVL $1, (R8)(CX*4)

go:
	MOVQ ·next(SB), AX
	JMP  AX
