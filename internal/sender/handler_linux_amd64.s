#include "textflag.h"

DATA ·handlerPC(SB)/8, $·handler(SB)
GLOBL ·handlerPC(SB), NOPTR, $8

// handler(DI: signal, SI: *siginfo_t, DX: *ucontext_t), by C's calling convention, which leaves AX, CX and R8 to it. It keeps the
// arguments and the stack as they are for the runtime's handler, which returns in its place.
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
