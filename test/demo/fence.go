//go:build linux

package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/singletonjob/operator/fence"
	"github.com/singletonjob/operator/fence/fencesql"
	"github.com/singletonjob/operator/test/controlplane"
	"github.com/singletonjob/operator/test/localnode"
	"github.com/singletonjob/operator/test/observe"
	"github.com/singletonjob/operator/test/postgres"
	"github.com/singletonjob/operator/test/stack"
	"github.com/singletonjob/operator/test/subprocess"
)

//go:embed fence.yaml
var fencedJob string

// program is one of examples/, which writes to a database of its own.
type program struct {
	name    string   // of the language, of its job and of its database
	shown   string   // its file
	command []string // its command on this machine
	db      *pgx.Conn
}

// fenceScenes are the scenes of -fence.
func (d *demo) fenceScenes(ctx context.Context) (scenes []func(context.Context) error, stop func(), err error) {
	stop = func() {}
	dir, err := os.MkdirTemp("", "singletonjob-fence-")
	if err != nil {
		return nil, stop, err
	}
	removes := func() { _ = os.RemoveAll(dir) }
	stop = removes
	programs, err := d.programs(ctx, dir)
	if err != nil {
		return nil, stop, err
	}
	address, end, err := startPostgres(ctx, dir)
	stop = func() { end(); removes() }
	if err != nil {
		return nil, stop, err
	}
	d.note("PostgreSQL runs on %s", address.Host)
	for _, p := range programs {
		scenes = append(scenes, func(ctx context.Context) error { return d.frozenProgram(ctx, p, *address) })
	}
	return scenes, stop, nil
}

// programs finds what the examples need. None of it is installed here.
func (d *demo) programs(ctx context.Context, dir string) ([]*program, error) {
	const python = "/usr/bin/python3" // Debian's, for which its package has psycopg2
	if out, err := exec.CommandContext(ctx, python, "-c", "import psycopg2").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("the Python program needs psycopg2: apt-get install python3-psycopg2: %w\n%s", err, out)
	}
	node, err := exec.LookPath("node")
	if err != nil {
		return nil, fmt.Errorf("the Node program needs Node: apt-get install nodejs npm: %w", err)
	}
	files := filepath.Join(dir, "node")
	if err := os.CopyFS(files, os.DirFS(filepath.Join(d.root, "examples/fence-node"))); err != nil {
		return nil, err
	}
	install := exec.CommandContext(ctx, "npm", "ci", "--fetch-retries=5", "--no-audit", "--no-fund", "--ignore-scripts")
	install.Dir = files
	if out, err := install.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("npm ci in examples/fence-node: %w\n%s", err, out)
	}
	return []*program{
		{name: "python", shown: "examples/fence-python/ledger.py", command: []string{python, filepath.Join(d.root, "examples/fence-python/ledger.py")}},
		{name: "node", shown: "examples/fence-node/ledger.js", command: []string{node, filepath.Join(files, "ledger.js")}},
	}, nil
}

// startPostgres starts a server on loopback. The address is the administrator's.
func startPostgres(ctx context.Context, dir string) (address *url.URL, stop func(), err error) {
	stop = func() {}
	port, err := controlplane.FreePort()
	if err != nil {
		return nil, stop, err
	}
	data := filepath.Join(dir, "postgres")
	if err := os.Mkdir(data, 0o700); err != nil {
		return nil, stop, err
	}
	server, err := postgres.Command(ctx, data, "127.0.0.1", strconv.Itoa(port))
	if err != nil {
		return nil, stop, err
	}
	process, err := subprocess.Start(server)
	if err != nil {
		return nil, stop, err
	}
	stop = func() {
		_ = process.Signal(syscall.SIGQUIT) // the server ends its children, and at once
		process.Stop(10 * time.Second)
	}
	address = &url.URL{
		Scheme: "postgres", User: url.User(postgres.User), Path: "/postgres", RawQuery: "sslmode=disable",
		Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)),
	}
	ready, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	err = observe.Await(ready, "PostgreSQL", func() (bool, any, error) {
		db, err := pgx.Connect(ready, address.String())
		if err == nil {
			err = db.Close(ready)
		}
		return err == nil, nil, err
	})
	return address, stop, err
}

// entries is the table of the examples. The role of the programs owns nothing, so it cannot bypass the fence.
const entries = `CREATE TABLE entries (n bigserial PRIMARY KEY, token bigint, payload text);
CREATE ROLE PROGRAM LOGIN;
GRANT SELECT, INSERT ON entries TO PROGRAM; GRANT USAGE ON entries_n_seq TO PROGRAM;`

// frozenProgram freezes a program past its lease, and thaws it after its successor has written.
func (d *demo) frozenProgram(ctx context.Context, p *program, server url.URL) error {
	d.scene("The program in "+p.name+" is frozen, and wakes up after its successor has written",
		`PostgreSQL has fence.sql. `+p.shown+` begins each transaction with
		SELECT fence.assert('`+namespace+"/"+p.name+`', $FENCING_TOKEN).
		The job has onRenewFailure: KeepRunning, so nothing but this fence stops a stale process.`)
	dsn, err := p.prepare(ctx, server)
	if err != nil {
		return err
	}
	defer func() { _ = p.db.Close(context.WithoutCancel(ctx)) }()
	if err := d.applyProgram(ctx, p, dsn); err != nil {
		return err
	}
	first, err := d.writer(ctx, p, 0)
	if err != nil {
		return err
	}
	if _, err := d.AwaitJob(ctx, namespace, p.name, "protected", stack.Protected); err != nil {
		return err
	}
	node, err := d.Cluster.NodeOf(namespace, first.pod)
	if err != nil {
		return err
	}
	if err := p.freeze(ctx, node, first.pod); err != nil {
		return err
	}
	d.say(red, "%s is frozen: agent, leash and program get SIGSTOP", first.pod)
	next, err := d.writer(ctx, p, first.token)
	if err != nil {
		return err
	}
	d.safe(next.token > first.token && next.pod != first.pod, "the successor of the "+p.name+" program has a higher token",
		"%d → %d", first.token, next.token)
	d.say(red, "thawed: the program of %s, which believes that it is still the holder; its agent stays frozen", first.pod)
	if _, err := node.Signal(namespace, first.pod, localnode.Leaves, syscall.SIGCONT); err != nil {
		return err
	}
	if err := d.programRefused(ctx, p, node, first, next); err != nil {
		return err
	}
	return node.Thaw(namespace, first.pod)
}

// prepare makes the program's database, and returns the address that the program has.
func (p *program) prepare(ctx context.Context, server url.URL) (dsn string, err error) {
	all, err := pgx.Connect(ctx, server.String())
	if err != nil {
		return "", err
	}
	_, err = all.Exec(ctx, "CREATE DATABASE "+p.name)
	if err := errors.Join(err, all.Close(ctx)); err != nil {
		return "", err
	}
	server.Path = "/" + p.name
	if p.db, err = pgx.Connect(ctx, server.String()); err != nil {
		return "", err
	}
	role := p.name + "_program"
	if _, err := p.db.Exec(ctx, fencesql.Script+strings.ReplaceAll(entries, "PROGRAM", role)); err != nil {
		return "", err
	}
	server.User = url.User(role)
	return server.String(), nil
}

func (d *demo) applyProgram(ctx context.Context, p *program, dsn string) error {
	var command []string
	for _, arg := range p.command {
		command = append(command, strconv.Quote(arg))
	}
	text := strings.NewReplacer("$NAME", p.name, "$COMMAND", strings.Join(command, ", "), "$DATABASE_URL", dsn).Replace(fencedJob)
	file := filepath.Join(d.Plane.Dir(), p.name+".yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return err
	}
	return d.Plane.Apply(ctx, file)
}

// writer waits until a process of the job with a token above after has written entries.
func (d *demo) writer(ctx context.Context, p *program, after fence.Token) (tenure, error) {
	const enough = 3
	var token fence.Token
	err := observe.Await(ctx, fmt.Sprintf("entries with a token above %d", after), func() (bool, any, error) {
		var n int
		err := p.db.QueryRow(ctx, "SELECT coalesce(max(token), 0), count(*) FROM entries WHERE token > $1", int64(after)).Scan(&token, &n)
		return n >= enough, n, err
	})
	if err != nil {
		return tenure{}, err
	}
	job, err := d.AwaitJob(ctx, namespace, p.name, "active with the next token", stack.ActiveAfter(max(after, token-1)))
	if err != nil {
		return tenure{}, err
	}
	now := tenure{token: fence.Token(job.Status.FencingToken), pod: job.Status.ActivePod, node: job.Status.ActiveNode}
	d.say(cyan, "%s on %s writes entries with token %d", now.pod, now.node, now.token)
	return now, nil
}

// freeze stops a pod's processes between two of the program's transactions. One that is frozen in a transaction holds the mark until
// idle_in_transaction_session_timeout ends it, and then wakes up without a connection: it has no write to be refused.
func (p *program) freeze(ctx context.Context, node *localnode.Node, pod string) error {
	for {
		if err := node.Freeze(namespace, pod); err != nil {
			return err
		}
		var busy int
		err := p.db.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND usename <> current_user AND state <> 'idle'`).Scan(&busy)
		if err != nil || busy == 0 {
			return err
		}
		if err := node.Thaw(namespace, pod); err != nil {
			return err
		}
	}
}

// programRefused waits for what becomes of the thawed program's write.
func (d *demo) programRefused(ctx context.Context, p *program, node *localnode.Node, old, next tenure) error {
	limited, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	refusal, stale := "", 0
	err := observe.Await(limited, "the refusal of a stale write", func() (bool, any, error) {
		text, err := os.ReadFile(node.Log(namespace, old.pod, "ledger"))
		if err != nil {
			return false, nil, err
		}
		for line := range strings.Lines(string(text)) {
			if i := strings.Index(line, "refused: "); i >= 0 {
				refusal = strings.TrimSpace(line[i:])
			}
		}
		err = p.db.QueryRow(limited, `SELECT count(*) FROM entries WHERE token < $1
			AND n > (SELECT min(n) FROM entries WHERE token = $1)`, int64(next.token)).Scan(&stale)
		return refusal != "" || stale > 0, nil, err
	})
	if err != nil && limited.Err() == nil {
		return err
	}
	if refusal != "" {
		d.block(p.name + " prints: " + refusal)
	}
	want := fmt.Sprintf("fencing token %d of %s/%s is stale: the highest is %d", old.token, namespace, p.name, next.token)
	d.check(strings.Contains(refusal, want), "the write of the thawed "+p.name+" program is refused", "token %d, after token %d", old.token, next.token)
	d.safe(stale == 0, "the table has no stale entry ("+p.name+")", "%d entries with token %d after the first with %d", stale, old.token, next.token)
	return d.entries(ctx, p, next)
}

// entries prints the rows around the takeover.
func (d *demo) entries(ctx context.Context, p *program, next tenure) error {
	rows, err := p.db.Query(ctx, `WITH first AS (SELECT min(n) AS at FROM entries WHERE token = $1),
		before AS (SELECT n, token FROM entries, first WHERE n < at ORDER BY n DESC LIMIT 3),
		after AS (SELECT n, token FROM entries, first WHERE n >= at ORDER BY n LIMIT 6)
		SELECT * FROM before UNION ALL SELECT * FROM after ORDER BY n`, int64(next.token))
	if err != nil {
		return err
	}
	var text strings.Builder
	var n, token int64
	_, err = pgx.ForEachRow(rows, []any{&n, &token}, func() error {
		_, err := fmt.Fprintf(&text, "%6d  %d\n", n, token)
		return err
	})
	d.print(d.mark(bold, "   $ psql -c 'SELECT n, token FROM entries ORDER BY n'   (around the takeover)"))
	d.block(text.String())
	return err
}
