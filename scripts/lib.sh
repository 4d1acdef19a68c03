# lib.sh
#   What the scripts of this directory share.  To be sourced by bash, with HERE set to
#   the top of the source tree.
#
# Assumption: PostgreSQL refuses to run as root, so where we are root every
# server, and everything that talks to it, runs as user postgres.  That user gets
# directories of its own in WORK, see server_directory(), and root neither writes
# into them nor runs what is in them: it could put symbolic links there.  Nothing is
# installed into the system: private_postgres() makes a copy of the installed
# PostgreSQL, which finds its own files relative to its binaries.

# Where the environment lets psql go, and with which settings, is not meant for the
# servers that are made here: each script exports its own.
for name in "${!PG@}"; do
  case "$name" in PG_CONFIG|PG_CONFIG_[0-9]*|PG_MAJOR|PG_TEST_*) ;; *) unset "$name" ;; esac
done
unset name INITDB_TEMPLATE
# the server's user reads what we write
umask 022
# ssh may bring a locale that is not here, with which initdb fails
[ -z "$(locale 2>&1 > /dev/null)" ] || export LC_ALL=C.UTF-8

# The version to work with, unless the environment says: the oldest that is here
# with its headers, else with its server, else the one that this release of Debian has.
if [ -z "${PG_MAJOR:-}" ]; then
  for PG_MAJOR in 15 16 17 18 19 ''; do
    [ ! -f "/usr/include/postgresql/$PG_MAJOR/server/postgres.h" ] || break
  done
  [ -n "$PG_MAJOR" ] || for PG_MAJOR in 15 16 17 18 19 ''; do
    [ ! -x "/usr/lib/postgresql/$PG_MAJOR/bin/postgres" ] || break
  done
  if [ -z "$PG_MAJOR" ]; then
    case $(. /etc/os-release 2> /dev/null && echo "${VERSION_CODENAME:-}") in
      trixie) PG_MAJOR=17 ;;
      forky|sid) PG_MAJOR=18 ;;
      noble) PG_MAJOR=16 ;;
      *) PG_MAJOR=15 ;;
    esac
  fi
fi

die() {
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 2
}

# What is fetched or built is kept here, outside of the tree; a reboot may empty it.
BUILDS=${INDEX_MOVER_BUILDS:-${TMPDIR:-/tmp}/index_mover-builds}

# Make a directory to keep things in, and print its path.  What is in it is run, as
# root too, so it must be ours.
own_directory() {          # directory, option that names another
  case "$1" in "$BUILDS"/*) own_directory "$BUILDS" "$2" > /dev/null || exit 2 ;; esac
  mkdir -p "$1" || exit 2
  [ -O "$1" ] && [ ! -L "$1" ] || die "$1 belongs to another user, name another with $2"
  (cd "$1" && pwd)
}

# The first address in apt's sources, in the new format or the old one.
mirror() {
  {
    awk '/^URIs:/ {print $2}' /etc/apt/sources.list.d/*.sources
    sed -n 's/^deb \(\[[^]]*\] *\)\{0,1\}\([^ ]*\) .*/\2/p' /etc/apt/sources.list /etc/apt/sources.list.d/*.list
  } 2> /dev/null | grep -E '^(https?|file|copy):' | head -n 1
}

# The releases of Debian that have a version of PostgreSQL.
releases() {
  case "$1" in 15) echo bookworm ;; 17) echo trixie ;; 18) echo sid ;; 19) echo sid experimental ;; esac
}

# Fetch packages, or sources, of releases of Debian that need not be this machine's:
# into the directory we are in, with lists of their own.  "deb-all" is for packages with
# all that they depend on; ARCH in the environment is of another machine.
fetch_packages() {      # deb, deb-all or deb-src, releases, package ...
  local kind=$1 releases=$2 from lists=$PWD/apt command=(download)
  shift 2
  command -v apt-get > /dev/null || { echo "no apt-get here"; return 1; }
  from=$(mirror)
  [ -n "$from" ] || { echo "no mirror in apt's sources"; return 1; }
  [ "$kind" != deb-src ] || command=(source --download-only)
  [ "$kind" != deb-all ] || { kind=deb command=(install -y --no-install-recommends --download-only); }
  mkdir -p "$lists/lists/partial" "$lists/cache/archives/partial"
  # shellcheck disable=SC2086
  printf "$kind $from %s main\n" $releases > "$lists/sources.list"
  local apt=(timeout 300 apt-get -q -o Dir::Etc::sourcelist="$lists/sources.list" -o Dir::Etc::sourceparts=/dev/null
    -o Dir::State::lists="$lists/lists" -o Dir::State::status=/dev/null -o Dir::Cache="$lists/cache"
    -o Acquire::Check-Valid-Until=false -o Acquire::http::Timeout=30
    -o APT::Update::Error-Mode=any -o APT::Sandbox::User=
    ${ARCH:+-o APT::Architecture="$ARCH" -o APT::Architectures::="$ARCH"})
  "${apt[@]}" update && "${apt[@]}" "${command[@]}" "$@" || return 1
  find "$lists/cache/archives" -name '*.deb' -exec mv -t . {} +
  rm -rf "$lists"
}

# Set PG_CONFIG to a pg_config with server headers and PGXS, or fail.  Who names one
# does not get another.
find_pg_config() {
  local candidate candidates=("/usr/lib/postgresql/$PG_MAJOR/bin/pg_config" "$(command -v pg_config)")
  # (a name without a directory is looked up, as PGXS does)
  [ -z "${PG_CONFIG:-}" ] || candidates=("$(command -v "$PG_CONFIG" || echo "$PG_CONFIG")")
  for candidate in "${candidates[@]}"; do
    # (Debian has some of PGXS, but no headers, in the server's own package)
    if [ -n "$candidate" ] && [ -x "$candidate" ] && [ -f "$("$candidate" --pgxs)" ] &&
        [ -f "$("$candidate" --includedir-server)/postgres.h" ]; then
      PG_CONFIG=$candidate
      return 0
    fi
  done
  [ -z "${PG_CONFIG:-}" ] || die "PG_CONFIG, which is $PG_CONFIG, has no server headers or no PGXS: install them, or unset it"
  return 1
}

# The user that runs servers.
server_user() {
  if [ "$(id -u)" = 0 ]; then echo postgres; else id -un; fi
}

# Run a command as the user that runs servers, with our environment.
as_server() {
  if [ "$(id -u)" = 0 ]; then
    HOME=${WORK:-/} USER=postgres LOGNAME=postgres setpriv --reuid=postgres --regid=postgres --init-groups "$@"
  else
    "$@"
  fi
}

# Make directories that the server's user owns, or take those that it owns already; in a
# directory into which it cannot write, or /tmp.  No other user gets into a new one: our
# servers trust whoever comes through their sockets, and run such commands as their user.
server_directory() {       # directory ...
  local dir
  for dir in "$@"; do
    mkdir -m 700 "$dir" 2> /dev/null
    [ -d "$dir" ] && [ ! -L "$dir" ] && { [ -O "$dir" ] || [ "$(stat -c %U "$dir")" = "$(server_user)" ]; } ||
      { echo "$dir belongs to another user, or cannot be made" >&2; return 1; }
    [ "$(id -u)" != 0 ] || chown -h postgres: "$dir" || return 1
  done
}

# Make WORK, a directory of ours, and in it WORK/run, where a server can have its socket
# and its log.  Make takes a space for an end, and the path of a Unix socket may have no
# more than 107 bytes.
make_work_directory() {
  local tmp
  tmp=$(CDPATH='' cd -- "${TMPDIR:-/tmp}" && pwd) && WORK=$(mktemp -d "$tmp/index_mover.XXXXXX") || exit 2
  chmod 755 "$WORK"
  server_directory "$WORK/run" || exit 2
  if [[ "$WORK" =~ [^[:alnum:]/._+-] ]] || [ ${#WORK} -gt 60 ] || ! as_server test -w "$WORK/run"; then
    rmdir "$WORK/run" "$WORK"
    die "cannot use $tmp: set TMPDIR to a short path without spaces, of a directory that user $(server_user) can enter"
  fi
}

# Copy the source tree to the directory $1, without what a build in it has left:
# the server's user may not be able to read the original (/root), and objects
# in it would be found by a VPATH build.
copy_source() {
  mkdir -p "$1"
  tar -C "$HERE" -cf - --exclude=./.git --exclude='*.o' --exclude='*.bc' --exclude='*.so' \
    --exclude=./results --exclude=./output_iso --exclude=./tmp_check --exclude=./log . |
    tar -C "$1" -xf - --no-same-owner
  chmod -R a+rX "$1"
}

# Copy the PostgreSQL installation of PG_CONFIG to the directory $1, and print the
# copy's pg_config.  The copies of several builds do not get in each other's way.
# The server's user may install extensions into it, and nothing else: we run its pg_config.
private_postgres() {
  local dir from bin prefix=()
  bin=$("$PG_CONFIG" --bindir)
  if [ -d "$(dirname "$bin")/sbin" ]; then
    # PostgreSQL is among others, as in /usr
    prefix=("$("$PG_CONFIG" --pkglibdir)")
    if [ ! -d "$1$bin" ]; then
      mkdir -p "$1$bin"
      find "$bin/" -maxdepth 1 \( -name 'pg*' -o -name 'post*' -o -name '*db' -o -name psql -o -name '*user' \) \
        -exec cp -p -t "$1$bin" {} +
    fi
  else
    prefix=("$(dirname "$bin")")
  fi
  for from in "${prefix[@]}" "$("$PG_CONFIG" --sharedir)"; do
    dir=$1$from
    [ -d "$dir" ] && continue
    mkdir -p "$dir"
    tar -C "$from" -cf - --exclude=./lib/bitcode . | tar -C "$dir" -xf - --no-same-owner
  done
  # Headers, libpq and translations are only read: no need to copy them.
  for from in "$("$PG_CONFIG" --includedir)" "$("$PG_CONFIG" --includedir-server)" "$("$PG_CONFIG" --localedir)"; do
    dir=$1$from
    [ -e "$dir" ] || [ ! -e "$from" ] && continue
    mkdir -p "$(dirname "$dir")"
    ln -s "$from" "$dir"
  done
  for from in "$("$PG_CONFIG" --pkglibdir)" "$("$PG_CONFIG" --sharedir)" "$("$PG_CONFIG" --docdir)"; do
    mkdir -p "$1$from"
    [ "$(id -u)" != 0 ] || chown -R postgres: "$1$from"
  done
  echo "$1$("$PG_CONFIG" --bindir)/pg_config"
}

# Not the alignment of WAL records and the like, which x86 does not ask for.
SANITIZE="-g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all -fno-sanitize=alignment"

# Prepare the server of a private copy of PostgreSQL, whose pg_config is $1, for a
# module with AddressSanitizer; $2 is a directory to put a library into.  (Its library
# cannot just be loaded first: Debian's server then hangs at its start.)
prepare_sanitizer() {
  local bin
  bin=$(dirname "$1")
  gcc -O1 -U_FORTIFY_SOURCE -shared -fPIC -o "$2/sanitize_late.so" "$HERE/scripts/sanitize_late.c" -ldl &&
    mv "$bin/postgres" "$bin/postgres.real" || return 1
  cat > "$bin/postgres" << SERVER || return 1
#!/bin/bash
LD_PRELOAD=$2/sanitize_late.so\${LD_PRELOAD:+:\$LD_PRELOAD} exec -a "\$0" "\$(dirname "\$0")/postgres.real" "\$@"
SERVER
  chmod 755 "$bin/postgres"
}
