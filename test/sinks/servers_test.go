package sinks

import (
	"context"
	"database/sql"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/singletonjob/operator/fence/fencesql"
	"github.com/singletonjob/operator/test/subprocess"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"
)

// nobody runs the servers that refuse to run as root.
const nobody = 65534

// server is a database server of this run.
type server struct {
	command func() *exec.Cmd
	data    string
	process *subprocess.Process
	driver  string
	dsn     string
}

// kill ends the server as a crash does.
func (s *server) kill() {
	if s.process != nil {
		s.process.Stop(0)
	}
}

// start starts it, and waits until it answers.
func (s *server) start() error {
	db, err := sql.Open(s.driver, s.dsn)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	ended := make(chan struct{})
	close(ended)
	for done, deadline := (<-chan struct{})(ended), time.Now().Add(3*time.Minute); ; time.Sleep(50 * time.Millisecond) {
		select {
		case <-done: // after a crash it does not start before the last of its processes has gone
			if s.process, err = subprocess.Start(s.command()); err != nil {
				return err
			}
			done = s.process.Done()
		default:
		}
		if err = db.Ping(); err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

// install makes the folder of a new server's data, and returns it with a port that is free.
func install(s *server, prepare func(dir string) (program string, args []string)) (dir, port string, err error) {
	if dir, err = os.MkdirTemp("", "sinks-"); err != nil {
		return "", "", err
	}
	s.data = dir
	servers = append(servers, s)
	if err := os.Chown(dir, nobody, nobody); err != nil {
		return "", "", err
	}
	program, args := prepare(dir)
	if err := run(program, args...); err != nil {
		return "", "", err
	}
	port, err = freePort()
	return dir, port, err
}

// servers are those that were begun, one at a time.
var (
	servers  []*server
	starting sync.Mutex
)

func run(name string, arg ...string) error {
	c := asNobody(exec.Command(name, arg...))
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", name, err, out)
	}
	return nil
}

func asNobody(c *exec.Cmd) *exec.Cmd {
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	c.Dir = "/"
	return c
}

func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer func() { _ = l.Close() }()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port), nil
}

// program finds one that is not in the path of every user.
func program(name string, dirs ...string) (string, error) {
	for _, pattern := range dirs {
		if found, _ := filepath.Glob(filepath.Join(pattern, name)); len(found) > 0 {
			return found[len(found)-1], nil
		}
	}
	return exec.LookPath(name)
}

// postgres and mariadb are what all tests share that do not end them.
var (
	postgres = sync.OnceValues(newPostgres)
	mariadb  = sync.OnceValues(newMariaDB)
)

func newPostgres() (*server, error) {
	starting.Lock()
	defer starting.Unlock()
	initdb, err := program("initdb", "/usr/lib/postgresql/*/bin")
	if err != nil {
		return nil, err
	}
	s := &server{driver: "pgx"}
	dir, port, err := install(s, func(dir string) (string, []string) {
		return initdb, []string{"-D", dir, "-U", "test", "-A", "trust", "--no-sync", "--no-instructions", "--locale=C", "-E", "UTF8"}
	})
	if err != nil {
		return nil, err
	}
	s.dsn = "postgres://test@127.0.0.1:" + port + "/postgres?sslmode=disable"
	s.command = func() *exec.Cmd {
		// fsync off: it is the process that is killed here, not the machine.
		return asNobody(exec.Command(filepath.Join(filepath.Dir(initdb), "postgres"), "-D", dir, "-p", port, "-k", dir,
			"-c", "listen_addresses=127.0.0.1", "-c", "fsync=off", "-c", "max_connections=300"))
	}
	return s, s.start()
}

func newMariaDB() (*server, error) {
	starting.Lock()
	defer starting.Unlock()
	installer, err := program("mariadb-install-db", "/usr/bin")
	if err != nil {
		return nil, err
	}
	s := &server{driver: "mysql"}
	dir, port, err := install(s, func(dir string) (string, []string) {
		return installer, []string{"--no-defaults", "--datadir=" + dir, "--auth-root-authentication-method=normal", "--skip-test-db"}
	})
	if err != nil {
		return nil, err
	}
	s.dsn = "root@tcp(127.0.0.1:" + port + ")/mysql"
	s.command = func() *exec.Cmd {
		return asNobody(exec.Command("/usr/sbin/mariadbd", "--no-defaults", "--datadir="+dir, "--port="+port, "--bind-address=127.0.0.1",
			"--socket="+filepath.Join(dir, "socket"), "--max-connections=300", "--innodb-flush-log-at-trx-commit=2"))
	}
	return s, s.start()
}

// kind is a database under test.
type kind struct {
	name    string
	dialect fencesql.Dialect
	server  func() (*server, error) // nil for a file
	levels  []sql.IsolationLevel
}

var everyLevel = []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable}

var kinds = []kind{
	{"PostgreSQL", fencesql.PostgreSQL, postgres, everyLevel},
	{"MariaDB", fencesql.MySQL, mariadb, everyLevel},
	{"SQLite", fencesql.SQLite, nil, []sql.IsolationLevel{sql.LevelDefault}},
}

// open connects to the database, a new one if it is a file.
func (k kind) open(t *testing.T) *sql.DB {
	t.Helper()
	driver, dsn := k.address(t)
	return connect(t, driver, dsn)
}

func (k kind) address(t *testing.T) (driver, dsn string) {
	t.Helper()
	if k.server == nil {
		return "sqlite", "file:" + filepath.Join(t.TempDir(), "db") + "?_pragma=busy_timeout(180000)&_pragma=journal_mode(WAL)"
	}
	s, err := k.server()
	must(t, err)
	return s.driver, s.dsn
}

func connect(t *testing.T, driver, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	must(t, err)
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	t.Cleanup(func() { _ = db.Close() })
	must(t, db.PingContext(t.Context()))
	return db
}

// connections are the most that a test has to a database.
const connections = 64

func TestMain(m *testing.M) {
	_ = mysql.SetLogger(log.New(io.Discard, "", 0)) // it tells of each connection that a test has ended
	if role := os.Getenv(roleEnv); role != "" {
		roles[role]()
		return
	}
	flag.Parse()
	code := m.Run()
	for _, s := range servers {
		s.kill()
		_ = os.RemoveAll(s.data)
	}
	os.Exit(code)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// patience is what a step may take on a busy machine.
func patience(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	return ctx
}
