#include "textflag.h"

DATA ·handlerPC(SB)/8, $·handler(SB)
GLOBL ·handlerPC(SB), NOPTR, $8

// handler(R0: signal, R1: *siginfo_t, R2: *ucontext_t), by C's calling convention, which leaves R3 to R8 to it; R27, which the assembler
// may use, the kernel restores. It keeps the arguments and the stack as they are for the runtime's handler, which returns in its place.
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
