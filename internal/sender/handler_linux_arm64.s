#include "textflag.h"

DATA ·handlerPC(SB)/8, $·handler(SB)
GLOBL ·handlerPC(SB), NOPTR, $8

// handler(R0: signal, R1: *siginfo_t, R2: *ucontext_t) follows C's calling convention, which lets it use R3 to R8. The assembler can use
// R27, which the kernel restores. It leaves the arguments and the stack unchanged for the runtime's handler, which returns in its place.
TEXT ·handler(SB), NOSPLIT|NOFRAME, $0
	CMPW $64, R0
	BHI  go
	MOVWU 8(R1), R3  // si_code: SI_USER is 0
	MOVWU 16(R1), R4 // si_pid
	ORR   R3, R4, R4
	CBNZW R4, go
	MOVWU R0, R3
	MOVD  $·came(SB), R4
	MOVD  $1, R5
	MOVW  R5, (R4)(R3<<2)

go:
	MOVD ·next(SB), R6
	B    (R6)
