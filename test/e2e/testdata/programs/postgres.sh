# As the usual image's entrypoint: a cluster is made where there is none, and then the server takes the shell's place.
set -e
# The number in it is that of a process that was killed, and may be a thread's of the agent now. Nobody else runs.
rm -f "$PGDATA/postmaster.pid"
if ! [ -d "$PGDATA/base" ]; then # whoever is killed while he makes it, makes it again
  rm -rf "$PGDATA.new"
  initdb --pgdata="$PGDATA.new" --username=app --auth=trust --no-sync --no-instructions >/dev/null
  rm -rf "$PGDATA"
  mv "$PGDATA.new" "$PGDATA"
fi
exec postgres -k /tmp -c listen_addresses='*' -c fsync=off
