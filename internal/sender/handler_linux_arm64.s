#include "textflag.h"

DATA ·handlerPC(SB)/8, $·handler(SB)
GLOBL ·handlerPC(SB), NOPTR, $8

// handler(R0: signal, R1: *siginfo_t, R2: *ucontext_t), by C's calling convention, which leaves R3 to R8 to it. It keeps the
// arguments and the stack as they are for the runtime's handler, which returns in its place.
TEXT ·handler(SB), NOSPLIT|NOFRAME, $0
	CMPW $64, R0
	BHI  go
	MOVWU R0, R3
	MOVD $·codes(SB), R4
	MOVW 8(R1), R5         // si_code
	MOVW R5, (R4)(R3<<2)
	MOVD $·pids(SB), R4
	MOVW 16(R1), R5        // si_pid
	MOVW R5, (R4)(R3<<2)

go:
	MOVD ·next(SB), R6
	B    (R6)
