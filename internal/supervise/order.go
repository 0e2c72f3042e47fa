//go:build linux

package supervise

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// order is what a leash starts. The agent writes it to a file in memory, which it shares with the leash only. So a leash can be forked
// before anybody knows the token that is in the program's environment. The environment has no effect on the leash itself (GODEBUG,
// GOMEMLIMIT), and no limit for arguments of an exec applies twice.
type order struct {
	dir       string
	argv, env []string
}

// newOrderFile opens an empty file in memory, which nobody can execute. Kernels before 6.3 do not know that flag, and later ones can demand it.
func newOrderFile() (int, error) {
	fd, err := unix.MemfdCreate("order", unix.MFD_CLOEXEC|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate("order", unix.MFD_CLOEXEC)
	}
	return fd, os.NewSyscallError("memfd_create", err)
}

// writeOrder writes an order. A leash reads it when it has its first deadline, which must be sent later.
func writeOrder(fd int, spec Spec) error {
	for data := encodeOrder(order{dir: spec.Dir, argv: spec.Argv, env: lastOfEach(spec.Env)}); len(data) > 0; {
		n, err := unix.Write(fd, data)
		if err != nil && err != unix.EINTR {
			return fmt.Errorf("write what to start to memory: %w", err)
		}
		data = data[max(n, 0):]
	}
	return nil
}

// readOrder reads an order and closes the file.
func readOrder(fd int) (order, error) {
	defer func() { _ = unix.Close(fd) }()
	size, err := unix.Seek(fd, 0, io.SeekEnd)
	if err != nil {
		return order{}, err
	}
	data := make([]byte, size)
	for read := 0; read < len(data); {
		n, err := unix.Pread(fd, data[read:], int64(read))
		switch {
		case err == unix.EINTR:
		case err != nil:
			return order{}, err
		case n == 0:
			return order{}, unix.EIO
		default:
			read += n
		}
	}
	return decodeOrder(data)
}

// encodeOrder writes each list after its length, and each string after its own: a string can contain any byte.
func encodeOrder(o order) []byte {
	var data []byte
	for _, list := range [][]string{{o.dir}, o.argv, o.env} {
		data = binary.AppendUvarint(data, uint64(len(list)))
		for _, s := range list {
			data = append(binary.AppendUvarint(data, uint64(len(s))), s...)
		}
	}
	return data
}

// decodeOrder returns EINVAL unless the data is complete and names a program.
func decodeOrder(data []byte) (order, error) {
	ok := true
	number := func() int {
		n, size := binary.Uvarint(data)
		if size <= 0 || n > uint64(len(data)-size) { // no list and no string is longer than what follows
			ok, data = false, nil
			return 0
		}
		data = data[size:]
		return int(n)
	}
	list := func() []string {
		strings := make([]string, number())
		for i := range strings {
			n := number()
			strings[i], data = string(data[:n]), data[n:]
		}
		return strings
	}
	dir, argv, env := list(), list(), list()
	if !ok || len(data) > 0 || len(dir) != 1 || len(argv) == 0 {
		return order{}, unix.EINVAL
	}
	return order{dir: dir[0], argv: argv, env: env}, nil
}
