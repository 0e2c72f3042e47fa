// Package fence is the check at the sink: it refuses writes of a past tenure.
//
// A SingletonJob gives its active process a fencing token that is greater than the token of every earlier
// tenure. The process sends the token with every write, and the sink refuses a token lower than the highest
// it has seen. A process that was frozen, cut off or slow may still believe that it is the holder. The sink
// refuses its writes once its successor has written.
//
// This holds under three conditions, which the sink must provide and this package cannot:
//
//   - The check and the write are one atomic step. Checking "is my token still good?" before the write does not
//     fence it: the process can pause between the check and the write.
//   - The highest token is as durable as the data it guards. A sink that loses it in a restart, a failover
//     or a restore accepts stale writes until the current tenure writes again.
//   - Every path to the data passes the check.
//
// Reads are not fenced, and neither are effects outside the sink, such as emails and payments.
//
// The package uses no clock, network or storage, and imports the standard library only. testdata/vectors holds
// its rules as test cases for implementations in other languages.
package fence

import (
	"errors"
	"fmt"
	"strconv"
)

// The environment of the active process. The first name is the default of spec.fencing.envVar.
const (
	EnvToken     = "FENCING_TOKEN"
	EnvNamespace = "SINGLETONJOB_NAMESPACE"
	EnvName      = "SINGLETONJOB_NAME"
)

// The headers of a fenced HTTP request. Each is sent exactly once.
const (
	HeaderToken    = "Fencing-Token"
	HeaderResource = "Fencing-Resource"
)

// MaxResourceLen is the longest Resource in bytes. It leaves room in an index key of every common database.
const MaxResourceLen = 200

// The errors for a token or resource. Compare with [errors.Is]; the error text has the details.
var (
	// ErrMissingToken: the write carries no token, or an empty one.
	ErrMissingToken = errors.New("fencing token is missing")
	// ErrMalformedToken: the write carries a value that is not a token.
	ErrMalformedToken = errors.New("fencing token is malformed")
	// ErrMalformedResource: the name of the guarded resource is empty, too long, or contains a character that is not allowed.
	ErrMalformedResource = errors.New("fencing resource is malformed")
	// ErrStale: a later tenure has written. See [StaleError].
	ErrStale = errors.New("fencing token is stale")
	// ErrAhead: a strict [Gate] refused a token that Advance has not announced. See [AheadError].
	ErrAhead = errors.New("fencing token is ahead of its mark")
)

// Token is the number of a tenure, 1 to 2⁶³−1. A later tenure has the greater token; there are gaps.
// Compare tokens as numbers: as strings, "9" sorts after "10". Zero is never a tenure's token; as a mark, it
// means that no token was accepted yet.
type Token int64

// ParseToken reads a token from its only valid spelling: decimal digits without sign, space or leading zero.
// A missing or malformed token is an error, never zero.
func ParseToken(s string) (Token, error) {
	if s == "" {
		return 0, fmt.Errorf("%w: want the decimal number in $%s", ErrMissingToken, EnvToken)
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if errors.Is(err, strconv.ErrRange) {
		return 0, fmt.Errorf("%w: %s is not within 1..2^63-1", ErrMalformedToken, quote(s))
	}
	if err != nil || n < 1 || s[0] == '0' || s[0] == '+' {
		return 0, fmt.Errorf("%w: %s is not a decimal number from 1 without sign, space or leading zero",
			ErrMalformedToken, quote(s))
	}
	return Token(n), nil
}

// Valid reports whether t can be the token of a tenure.
func (t Token) Valid() bool { return t > 0 }

// String returns the spelling that [ParseToken] reads.
func (t Token) String() string { return strconv.FormatInt(int64(t), 10) }

// check is for tokens that did not come from ParseToken: a program can convert any int64 to a Token.
func (t Token) check() error {
	switch {
	case t == 0:
		return fmt.Errorf("%w: 0 is not the token of any tenure", ErrMissingToken)
	case t < 0:
		return fmt.Errorf("%w: %d is negative", ErrMalformedToken, int64(t))
	}
	return nil
}

// Resource names what a mark guards, such as a ledger, a table or a bucket. Writers and sink use the same name.
// Tokens of different jobs are not comparable, so a resource belongs to one job.
// It consists of 1 to [MaxResourceLen] ASCII letters, digits and "-._/:@", so that it needs no escaping in
// headers, SQL or log files.
type Resource string

// ResourceOf returns "namespace/name", the resource of a job that writes to one resource only.
func ResourceOf(namespace, name string) Resource { return Resource(namespace + "/" + name) }

// ParseResource checks a name that comes from outside the program.
func ParseResource(s string) (Resource, error) {
	if s == "" {
		return "", fmt.Errorf("%w: it is empty", ErrMalformedResource)
	}
	if len(s) > MaxResourceLen {
		return "", fmt.Errorf("%w: it has %d bytes, the most is %d", ErrMalformedResource, len(s), MaxResourceLen)
	}
	for i := range len(s) {
		if !resourceByte(s[i]) {
			return "", fmt.Errorf("%w: %s has a byte other than a letter, a digit or one of -._/:@",
				ErrMalformedResource, quote(s))
		}
	}
	return Resource(s), nil
}

func resourceByte(c byte) bool {
	switch c {
	case '-', '.', '_', '/', ':', '@':
		return true
	}
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// StaleError is the refusal of a write whose tenure is over. The writer must not retry the write and should stop:
// no later write with this token can succeed either.
type StaleError struct {
	Resource  Resource
	Presented Token // the token of the write
	Highest   Token // the highest token that the sink had accepted before
}

func (e *StaleError) Error() string {
	return fmt.Sprintf("%v: %s has seen token %d, the write carries %d: a later tenure has taken over, stop writing",
		ErrStale, e.Resource, int64(e.Highest), int64(e.Presented))
}

// Is makes errors.Is(err, ErrStale) true.
func (e *StaleError) Is(target error) bool { return target == ErrStale }

// AheadError is the refusal by a strict [Gate] of a token that no Advance has announced. Either the tenure's
// preActivate step did not run or did not finish, or the token was never issued.
type AheadError struct {
	Resource  Resource
	Presented Token
	Mark      Token // zero: no token was announced yet
}

func (e *AheadError) Error() string {
	return fmt.Sprintf("%v: %s stands at %d, the write carries %d: advance the mark to the tenure's token before writing",
		ErrAhead, e.Resource, int64(e.Mark), int64(e.Presented))
}

// Is makes errors.Is(err, ErrAhead) true.
func (e *AheadError) Is(target error) bool { return target == ErrAhead }

// quote quotes untrusted input, shortened.
func quote(s string) string {
	const most = 40
	if len(s) <= most {
		return strconv.Quote(s)
	}
	return fmt.Sprintf("%s… (%d bytes)", strconv.Quote(s[:most]), len(s))
}
