package schedule

import (
	"bufio"
	"compress/gzip"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"
)

// packed is Go's own lib/time/zoneinfo.zip, compressed, because that zip is not. time.LoadLocation would read the environment and
// the file system first. These come from the image, and two candidates can run different images.
//
//go:generate sh -c "gzip -9n < $(go env GOROOT)/lib/time/zoneinfo.zip > zones.zip.gz"
//go:embed zones.zip.gz
var packed string

// maxZone bounds the size of one time zone's table.
const maxZone = 1 << 16

// zone is the clock of a time zone. It shows civil seconds, counted as if the clock showed UTC.
type zone struct{ location *time.Location }

// zones caches time zones by name: loading one takes milliseconds, and every read of a Lease needs its zone. Its size is bounded by
// the number of tables, which never change.
var zones sync.Map

func loadZone(name string) (zone, error) {
	if known, ok := zones.Load(name); ok {
		if z, ok := known.(zone); ok {
			return z, nil
		}
	}
	z, err := unpackZone(name)
	if err == nil {
		zones.Store(name, z)
	}
	return z, err
}

func unpackZone(name string) (zone, error) {
	table, similar, err := find(name)
	switch {
	case err != nil:
		return zone{}, err
	case table == nil && similar != "":
		return zone{}, fmt.Errorf("%s is not a time zone: write %s", quote(name), similar)
	case table == nil:
		return zone{}, fmt.Errorf("%s is not a time zone: write a name from the IANA database, such as Europe/Berlin, or omit it for %s",
			quote(name), DefaultTimeZone)
	}
	location, err := time.LoadLocationFromTZData(name, table)
	if err != nil {
		return zone{}, fmt.Errorf("%s: cannot read its time zone table: %w", quote(name), err)
	}
	return zone{location}, nil
}

// find returns the table of a zone, or nil and the name of a zone that is spelled similarly.
func find(name string) (table []byte, similar string, err error) {
	err = walk(func(zone string, data []byte) bool {
		if zone == name {
			table = slices.Clone(data)
			return false
		}
		if strings.EqualFold(zone, name) || strings.EqualFold(zone, strings.ReplaceAll(name, " ", "_")) {
			similar = zone
		}
		return true
	})
	return table, similar, err
}

// walk calls visit for each zone until it returns false.
func walk(visit func(name string, data []byte) bool) error {
	unpacked, err := gzip.NewReader(strings.NewReader(packed))
	if err != nil {
		return fmt.Errorf("cannot read the time zone tables: %w", err)
	}
	in := bufio.NewReader(unpacked)
	for {
		name, data, err := readFile(in)
		if err != nil {
			return fmt.Errorf("cannot read the time zone tables: %w", err)
		}
		if name == "" || !visit(name, data) {
			return nil
		}
	}
}

// The header of a file in a zip without compression, and the offsets of the fields that are needed.
const (
	headLen   = 30
	headMagic = "PK\x03\x04"
	sizeAt    = 22
	nameLenAt = 26
	moreLenAt = 28
)

// readFile reads the next file of a zip. The name is empty after the last file.
func readFile(in io.Reader) (name string, data []byte, err error) {
	var head [headLen]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return "", nil, err
	}
	if string(head[:len(headMagic)]) != headMagic { // the directory at the end
		return "", nil, nil
	}
	size := int(binary.LittleEndian.Uint32(head[sizeAt:]))
	nameLen := int(binary.LittleEndian.Uint16(head[nameLenAt:]))
	more := int(binary.LittleEndian.Uint16(head[moreLenAt:]))
	if size > maxZone {
		return "", nil, errors.New("a time zone table is too large")
	}
	body := make([]byte, nameLen+more+size)
	if _, err := io.ReadFull(in, body); err != nil {
		return "", nil, err
	}
	return string(body[:nameLen]), body[nameLen+more:], nil
}

// offset is how far the zone's clock is ahead of UTC.
func (z zone) offset(at Stamp) Stamp {
	_, seconds := time.Unix(int64(at), 0).In(z.location).Zone()
	return Stamp(seconds)
}

// far is later than any instant in use.
const far = 2 * maxStamp

// span returns the seconds around at that have the same offset, from start up to, but not including, end. After the end of its table, Go
// ends spans with each year, on day 365. On the last day of a leap year that end is in the past, so span returns the end of the day.
func (z zone) span(at Stamp) (start, end Stamp) {
	first, last := time.Unix(int64(at), 0).In(z.location).ZoneBounds()
	start, end = -far, far
	if !first.IsZero() {
		start = max(start, Stamp(first.Unix()))
	}
	if !last.IsZero() {
		end = min(end, Stamp(last.Unix()))
	}
	if end <= at {
		end = (floor(at, daySeconds) + 1) * daySeconds
	}
	return start, end
}

// turnback is greater than any amount by which a zone's clock was ever set back: offsets are from -16 to +16 hours.
const turnback = 2 * daySeconds

// reached is the latest time that the zone's clock has shown up to an instant. After the clock is set back, it shows an earlier
// time.
func (z zone) reached(at Stamp) Stamp {
	shown := at + z.offset(at)
	for start, _ := z.span(at); start > at-turnback; start, _ = z.span(start - 1) {
		shown = max(shown, start-1+z.offset(start-1))
	}
	return shown
}

// first is the first instant at which the zone's clock shows a civil second or a later one.
func (z zone) first(civil Stamp) Stamp {
	at := civil - turnback
	for {
		_, end := z.span(at)
		if due := max(at, civil-z.offset(at)); due < end {
			return due
		}
		at = end
	}
}
