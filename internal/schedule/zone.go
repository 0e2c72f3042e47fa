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

// packed is Go's own lib/time/zoneinfo.zip, packed once more: it is a zip without compression. time.LoadLocation would ask the
// environment and the file system first, which are the image's, and two candidates may run different images.
//
//go:generate sh -c "gzip -9n < $(go env GOROOT)/lib/time/zoneinfo.zip > zones.zip.gz"
//go:embed zones.zip.gz
var packed string

// maxZone bounds the size of one zone's table.
const maxZone = 1 << 16

// zone is a zone's clock: it shows civil seconds, which are counted as if that clock were UTC's.
type zone struct{ location *time.Location }

// zones are those that were asked for, by name: to find one takes milliseconds, and a Lease says its zone each time that it is read.
// There are no more of them than there are tables, which never change.
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
		return zone{}, fmt.Errorf("%s is not a zone: write %s", quote(name), similar)
	case table == nil:
		return zone{}, fmt.Errorf("%s is not a zone: write a name of the IANA tables, like Europe/Berlin, or leave it out for %s",
			quote(name), DefaultTimeZone)
	}
	location, err := time.LoadLocationFromTZData(name, table)
	if err != nil {
		return zone{}, fmt.Errorf("%s: its table can't be read: %w", quote(name), err)
	}
	return zone{location}, nil
}

// find returns the table of a zone, or nil and the name of one that is written alike.
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

// walk gives all zones to visit, until that returns false.
func walk(visit func(name string, data []byte) bool) error {
	unpacked, err := gzip.NewReader(strings.NewReader(packed))
	if err != nil {
		return fmt.Errorf("the tables of zones can't be read: %w", err)
	}
	in := bufio.NewReader(unpacked)
	for {
		name, data, err := readFile(in)
		if err != nil {
			return fmt.Errorf("the tables of zones can't be read: %w", err)
		}
		if name == "" || !visit(name, data) {
			return nil
		}
	}
}

// The head of a file in a zip without compression, and where in it stands what is needed.
const (
	headLen   = 30
	headMagic = "PK\x03\x04"
	sizeAt    = 22
	nameLenAt = 26
	moreLenAt = 28
)

// readFile reads the next file of a zip; the name is empty where there are no more.
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
		return "", nil, errors.New("a table is too large")
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

// far is farther away than any instant that is asked for.
const far = 2 * maxStamp

// span returns seconds around at in which the offset is the same one, from start up to but without end. Beyond its table Go ends
// them with each year, on day 365: on the last day of a leap year the end that it tells is past, and that of the day is taken.
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

// turnback is more than all that a zone's clock was ever set back by: offsets are from -16 to +16 hours.
const turnback = 2 * daySeconds

// reached is the latest that the zone's clock has shown up to an instant. Where it was set back, it shows less now.
func (z zone) reached(at Stamp) Stamp {
	shown := at + z.offset(at)
	for start, _ := z.span(at); start > at-turnback; start, _ = z.span(start - 1) {
		shown = max(shown, start-1+z.offset(start-1))
	}
	return shown
}

// first is the first instant at which the zone's clock shows a civil second, or a later one.
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
