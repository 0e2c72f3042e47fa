#include "textflag.h"

DATA ·handlerPC(SB)/8, $·handler(SB)
GLOBL ·handlerPC(SB), NOPTR, $8

// handler(DI: signal, SI: *siginfo_t, DX: *ucontext_t), by C's calling convention, which leaves AX, CX and R8 to it. It keeps the
// arguments and the stack as they are for the runtime's handler, which returns in its place.
TEXT ·handler(SB), NOSPLIT|NOFRAME, $0
	CMPL DI, $64
	JHI  go
	MOVL DI, AX
	LEAQ ·codes(SB), R8
	MOVL 8(SI), CX // si_code
	MOVL CX, (R8)(AX*4)
	LEAQ ·pids(SB), R8
	MOVL 16(SI), CX // si_pid
	MOVL CX, (R8)(AX*4)

go:
	MOVQ ·next(SB), AX
	JMP  AX
