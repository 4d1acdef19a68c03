# IndexMover::Test
#   What the TAP tests share: servers with two tablespaces and the extension,
#   calls that run in the background, waiting for a state instead of sleeping,
#   and the oracles of sql/include/oracles.sql as test functions.
#
# A test that needs pause points says so with needs_test_points(); scripts/test
# runs it on the build that has them, elsewhere it is skipped.
package IndexMover::Test;

use strict;
use warnings;

use Exporter 'import';
use File::Basename qw(dirname);
use IPC::Run ();
use List::Util ();
use IndexMover::Session;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils ();
use Test::More;
use Time::HiRes qw(time usleep);

our @EXPORT = qw(
  faults long picked needs_faults
  needs_test_points has_test_points has_sanitizer no_finding_ok set_test_point set_tests held_at let_go
  new_node setup_database make_zoo
  start_call finish_call call_is_running caller_pid sqlstate_of begin_job
  poll_until wait_until_up wait_for_phase wait_for_no_worker wait_for_job_end worker_pid
  soon_ok leave_behind make_gate
  verdict_ok files_ok leftovers_ok metadata_ok dump_schema dump_ok all_right survived_ok count_fault standby_ok
  tablespace_of block_size
);

# Core's modules take away most of what psql would be told by the environment.
BEGIN
{
	delete @ENV{ grep { /^PG[A-Z]/ && $_ ne 'PGAPPNAME' } keys %ENV };
}

our $TIMEOUT = $ENV{PG_TEST_TIMEOUT_DEFAULT} || 180;

# The seconds in the tests are what is promised on a machine that has nothing
# else to do.  A busy one makes pauses of seconds, so that a test fails only if
# something takes this many times as long; where something is wrong it takes
# for ever, or until somebody lets go who doesn't before.  With
# INDEX_MOVER_SLACK=1 the promise itself is tested.
our $SLACK = $ENV{INDEX_MOVER_SLACK} || 10;

# What the oracles have compared, and what has become of the calls: each test
# file says so at its end, and scripts/reliability adds it up.
our %count;
my %log_seen;
my $main = $$;

END
{
	if ($$ == $main)
	{
		note "count: $_ $count{$_}" for sort keys %count;
	}
}

# ---------------------------------------------------------------------------
# How much is tested
# ---------------------------------------------------------------------------

# PG_TEST_EXTRA is core's own switch for what takes long or wants more than a
# server: with "faults" every fault is tried at every step, with "long" what takes a
# quarter of an hour and more.  Without, a test says what it leaves out.
sub extra
{
	my ($word, $left_out) = @_;
	return 1 if ($ENV{PG_TEST_EXTRA} // '') =~ /\b$word\b/;
	note "left out: $left_out (PG_TEST_EXTRA=$word)" if $left_out;
	return 0;
}

sub faults { return extra('faults', @_); }
sub long { return extra('long', @_); }

# Those of the cases for which the block is true; with "faults" all of them.
sub picked(&$@)
{
	my ($is_picked, $what, @cases) = @_;
	return @cases if faults();
	my @picked = grep { $is_picked->() } @cases;
	faults(@cases - @picked . ' of ' . @cases . " $what") if @picked < @cases;
	return @picked;
}

# Skip the whole file without "faults".
sub needs_faults
{
	plan skip_all => 'left out without PG_TEST_EXTRA=faults' unless faults();
	return;
}

# ---------------------------------------------------------------------------
# Builds
# ---------------------------------------------------------------------------

sub library_has
{
	my ($string) = @_;
	chomp(my $dir = `pg_config --pkglibdir`);
	open(my $fh, '<:raw', "$dir/index_mover.so") or return 0;
	local $/;
	return <$fh> =~ /$string/ ? 1 : 0;
}

# Whether the installed library was compiled with pause points.
sub has_test_points { return library_has(qr/index_mover\.test/); }

# Whether it was compiled with AddressSanitizer; scripts/test runs files that ask on
# a build that was, if it can.
sub has_sanitizer { return library_has(qr/__asan_init/); }

# The sanitizers have found nothing: that ends a process, which a test that expects
# errors may not notice.
sub no_finding_ok
{
	my ($node) = @_;
	my @findings = grep { /runtime error: |ERROR: AddressSanitizer/ } split /\n/, PostgreSQL::Test::Utils::slurp_file($node->logfile);
	return is(join("\n", @findings), '', has_sanitizer() ? 'no finding of the sanitizers' : 'no sanitizer here');
}

# Skip the whole file without them.
sub needs_test_points
{
	plan skip_all => 'needs a build with pause points (-DINDEX_MOVER_TEST)'
	  unless has_test_points();
	return;
}

# ---------------------------------------------------------------------------
# Servers
# ---------------------------------------------------------------------------

# A started server whose database "postgres" is ready (see setup_database).
# Options: streaming => 1; conf => text for postgresql.conf; extra => [initdb's
# options]; extension => 0 to leave the extension out; start => 0; verify => 0, see
# below.
sub new_node
{
	my ($name, %options) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);
	$node->init(
		allows_streaming => $options{streaming} ? 1 : 0,
		extra => $options{extra} || []);
	# Core's test settings are those of a small server that may lose its data;
	# the settings here are what a user starts with, but no autovacuum: tests
	# say when they want it.  How full the machine's disk is, no test depends on.
	$node->append_conf('postgresql.conf', <<CONF);
wal_level = replica
max_wal_senders = 10
max_connections = 50
shared_buffers = 32MB
max_worker_processes = 8
max_prepared_transactions = 10
autovacuum = off
restart_after_crash = on
allow_in_place_tablespaces = on
log_error_verbosity = verbose
log_statement = none
index_mover.min_free_space = 0
CONF
	# And each copy is compared with the original, whatever else a test looks at,
	# but where that would be in the way: these say so, and why.
	$node->append_conf('postgresql.conf', 'index_mover.verify = on')
	  unless exists $options{verify} && !$options{verify};
	$node->append_conf('postgresql.conf', $options{conf}) if $options{conf};
	return $node if exists $options{start} && !$options{start};
	$node->start;
	$node->safe_psql('postgres', "CREATE TABLESPACE regress_slow LOCATION ''");
	$node->safe_psql('postgres', "CREATE TABLESPACE regress_fast LOCATION ''");
	setup_database($node, 'postgres', %options);
	return $node;
}

# Load the oracles and the extension into a database.
sub setup_database
{
	my ($node, $db, %options) = @_;
	$node->psql(
		$db,
		"SET client_min_messages = warning;\n"
		  . PostgreSQL::Test::Utils::slurp_file(
			dirname(__FILE__) . '/../../../sql/include/oracles.sql'),
		on_error_die => 1);
	$node->safe_psql($db, 'CREATE EXTENSION index_mover CASCADE')
	  unless exists $options{extension} && !$options{extension};
	return;
}

# Make the table $table with an index of every kind that core can rebuild
# concurrently, in tablespace regress_slow, and $rows rows.  (Whether it can a
# deferrable constraint's depends on the minor version: t/016_rebuild_deferrable.pl.)
sub make_zoo
{
	my ($node, $table, $rows, $db) = @_;
	$node->safe_psql($db || 'postgres', <<SQL);
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS btree_gist;
CREATE EXTENSION IF NOT EXISTS pg_trgm;
CREATE EXTENSION IF NOT EXISTS bloom;
SET default_tablespace = regress_slow;
CREATE TABLE $table (
	id int PRIMARY KEY, grp int NOT NULL, txt text, num numeric, pt point,
	rng int4range, arr int[], doc tsvector, js jsonb, maybe int,
	UNIQUE (num)) WITH (fillfactor = 70);
CREATE UNIQUE INDEX ${table}_incl ON $table (id) INCLUDE (grp) WITH (fillfactor = 80);
CREATE INDEX ${table}_txt ON $table (txt COLLATE "C" DESC NULLS LAST);
CREATE INDEX ${table}_multi ON $table (maybe, grp);
CREATE INDEX ${table}_part ON $table (grp) WHERE maybe IS NULL;
CREATE INDEX ${table}_expr ON $table (upper(txt));
CREATE INDEX ${table}_hash ON $table USING hash (txt);
CREATE INDEX ${table}_gist ON $table USING gist (pt);
CREATE INDEX ${table}_rng ON $table USING gist (rng);
CREATE INDEX ${table}_trgm ON $table USING gist (txt gist_trgm_ops (siglen = 32));
CREATE INDEX ${table}_sp ON $table USING spgist (txt);
CREATE INDEX ${table}_arr ON $table USING gin (arr);
CREATE INDEX ${table}_doc ON $table USING gin (doc);
CREATE INDEX ${table}_js ON $table USING gin (js jsonb_path_ops);
CREATE INDEX ${table}_brin ON $table USING brin (id) WITH (pages_per_range = 4);
CREATE INDEX ${table}_bloom ON $table USING bloom (id, grp);
COMMENT ON INDEX ${table}_txt IS 'a comment that must stay';
ALTER INDEX ${table}_expr ALTER COLUMN 1 SET STATISTICS 77;
ALTER TABLE $table REPLICA IDENTITY USING INDEX ${table}_incl;
ALTER TABLE $table CLUSTER ON ${table}_incl;
INSERT INTO $table
SELECT g, g % 97, 'text ' || g % 1009, g, point(g % 71, g % 53), int4range(g, g + 10),
       ARRAY[g % 31, g % 7], to_tsvector('simple', 'w' || g % 211 || ' x' || g % 11),
       jsonb_build_object('k', g % 101), CASE WHEN g % 3 = 0 THEN g % 50 END
  FROM generate_series(1, $rows) g;
VACUUM ANALYZE $table;
SQL
	return;
}

# The tablespaces of a table's indexes, "name: tablespace" in lines.
sub tablespace_of
{
	my ($node, $table, $db) = @_;
	return $node->safe_psql($db || 'postgres', <<SQL);
SELECT c.relname || ': ' || coalesce(t.spcname, 'default')
  FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
  LEFT JOIN pg_tablespace t ON t.oid = c.reltablespace
 WHERE i.indrelid = '$table'::regclass ORDER BY 1
SQL
}

# ---------------------------------------------------------------------------
# Calls in the background
# ---------------------------------------------------------------------------

# Start psql with $sql; the name is its application_name.  Options: dbname,
# user, connstr (further words of the connection string).
sub start_call
{
	my ($node, $name, $sql, %options) = @_;
	my $connstr = $node->connstr($options{dbname} || 'postgres');
	$connstr .= " user=$options{user}" if $options{user};
	$connstr .= " application_name=$name";
	$connstr .= " $options{connstr}" if $options{connstr};
	my $call = { name => $name, node => $node, sql => $sql, log => -s $node->logfile, out => '', err => '' };
	# A file, because IPC::Run writes to a process only when it is pumped.
	$call->{file} = PostgreSQL::Test::Utils::tempdir() . "/$name.sql";
	open(my $fh, '>', $call->{file}) or die "$call->{file}: $!";
	print $fh "$sql\n";
	close $fh;
	$call->{harness} = IPC::Run::start(
		[ 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-v', 'VERBOSITY=verbose',
			'-d', $connstr, '-f', $call->{file} ],
		'<', \'', '>', \$call->{out}, '2>', \$call->{err},
		$call->{timer} = IPC::Run::timer($TIMEOUT));
	return $call;
}

# Wait for its end; returns (exit status, output, errors and notices, seconds
# waited here).
sub finish_call
{
	my ($call) = @_;
	my $start = time;
	eval { $call->{harness}->finish; 1 } or do
	{
		my $problem = $@;
		$call->{harness}->kill_kill;
		die "call $call->{name} did not end within $TIMEOUT s: $problem";
	};
	my $status = $call->{harness}->result(0);
	count_call($call, time - $start);
	return ($status, $call->{out}, $call->{err}, time - $start);
}

# Count a call that moves.  A deadlock is one whoever had to give way: what the
# call was told, or an error of anybody's in the server's log meanwhile.
sub count_call
{
	my ($call, $seconds) = @_;
	my ($node, $sql) = ($call->{node}, $call->{sql} // '');
	return unless $sql =~ /\b(?:move_\w*indexes|undo_move)\b/;
	# no line twice, if there are several calls at a time
	my $from = List::Util::max($call->{log} || 0, $log_seen{ $node->name } // 0);
	my $log = -f $node->logfile ? PostgreSQL::Test::Utils::slurp_file($node->logfile, $from) // '' : '';
	$log_seen{ $node->name } = $from + length $log;
	# (a rebuild that was chosen says that it gave way, 55006, and why)
	my $deadlocks = () = $log =~ /:  40P01: |did not move .*deadlock detected/g;
	$deadlocks ||= "$call->{out}\n$call->{err}" =~ /\b40P01\b|deadlock detected/ ? 1 : 0;
	my $how = $sql =~ /'copy'/ ? 'by copy' : $sql =~ /'rebuild'/ ? 'by rebuild' : 'by the default method';
	$count{"calls that move $how, beside something else"}++;
	$count{"calls that move $how, beside something else, more than 60 s without an answer"} += $seconds > 60 ? 1 : 0;
	$count{"calls that move $how, beside something else, deadlocks"} += $deadlocks;
	return;
}

# Begin a job that nobody waits for, with these settings; returns its number.  The
# method is copy unless method => says another.
sub begin_job
{
	my ($node, $relation, $tablespace, %settings) = @_;
	my $method = delete $settings{method} || 'copy';
	my $json = join ', ', map { "\"$_\": \"$settings{$_}\"" } sort keys %settings;
	return $node->safe_psql('postgres',
		"SELECT max(job) FROM move_indexes('$relation', '$tablespace', method => '$method', wait => false, settings => '{$json}')");
}

sub call_is_running
{
	my ($call) = @_;
	$call->{harness}->pump_nb;
	return $call->{harness}->pumpable ? 1 : 0;
}

sub caller_pid
{
	my ($call) = @_;
	poll_until($call->{node},
		"SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = '$call->{name}'",
		't', "session of call $call->{name}");
	return $call->{node}->safe_psql('postgres',
		"SELECT pid FROM pg_stat_activity WHERE application_name = '$call->{name}'");
}

# The SQLSTATE of the first error in psql's output (VERBOSITY = verbose).
sub sqlstate_of
{
	my ($errors) = @_;
	return $errors =~ /^(?:psql:[^\n]*?)?(?:ERROR|FATAL):\s+([0-9A-Z]{5}):/m ? $1 : '';
}

sub set_tests_to
{
	my ($node, %settings) = @_;
	foreach my $name (sort keys %settings)
	{
		$node->safe_psql('postgres', "LOAD 'index_mover'; "
			. ($settings{$name} ? "ALTER SYSTEM SET index_mover.$name = '$settings{$name}'"
				: "ALTER SYSTEM RESET index_mover.$name"));
	}
	$node->reload;
	return;
}

# What a test build does at which point (test_point => "name:action"), and what
# it leaves out (test_mutation => name); see src/test_points.c.  What is not
# named is reset.
sub set_tests
{
	my ($node, %settings) = @_;
	return set_tests_to($node, test_point => '', test_mutation => '', %settings);
}

# Only the first of them; '' for nothing.
sub set_test_point
{
	my ($node, $value) = @_;
	return set_tests_to($node, test_point => $value);
}

# Start a call and wait until its move stands still at a point.  Returns the call;
# let_go($call) makes the move go on.  With prepared => 1 no session is needed
# to hold it there; then => "name:action" is what happens at a later point.
sub held_at
{
	my ($node, $point, $sql, %options) = @_;
	set_test_point($node, join ',', "$point:wait", $options{then} || ());
	my $holder = IndexMover::Session->new($node, dbname => $options{dbname});
	$holder->run($options{prepared}
		? "BEGIN; SELECT pg_advisory_xact_lock(0, 5959); PREPARE TRANSACTION 'holder'"
		: 'SELECT pg_advisory_lock(0, 5959)');
	my $log = -s $node->logfile;
	my $call = start_call($node, 'mover', $sql, %options);
	$call->{holder} = $holder;
	$holder->end, $call->{holder} = undef if $options{prepared};
	$node->wait_for_log(qr/test point "$point": waiting/, $log);
	set_test_point($node, '') unless $options{then};
	$call->{worker} = $node->safe_psql('postgres', "SELECT pid FROM pg_stat_activity WHERE backend_type = 'index_mover'");
	return $call;
}

sub let_go
{
	my ($call) = @_;
	$call->{holder}->end if $call->{holder};
	$call->{holder} = undef;
	return;
}

# The size of a page, 8192 unless PostgreSQL was built otherwise.
sub block_size
{
	my ($node) = @_;
	return $node->safe_psql('postgres', 'SHOW block_size');
}

# ---------------------------------------------------------------------------
# Waiting for a state
# ---------------------------------------------------------------------------

# Poll until the query gives the expected answer ('t'); dies with the last
# answer when it does not.  Returns the seconds it took.  Option timeout: in
# seconds of a machine that has nothing else to do.
sub poll_until
{
	my ($node, $query, $expected, $what, %options) = @_;
	$expected = 't' unless defined $expected;
	my $limit = $options{timeout} ? List::Util::min($options{timeout} * $SLACK, $TIMEOUT) : $TIMEOUT;
	my $start = time;
	my ($out, $err);
	while (1)
	{
		# where the connection is refused, psql may end before it is told the query
		eval { $node->psql($options{dbname} || 'postgres', $query, stdout => \$out, stderr => \$err); 1 } or do
		{
			die $@ unless $@ =~ /Broken pipe/;
			($out, $err) = (undef, $@);
		};
		return time - $start if defined $out && $out eq $expected;
		last if time - $start > $limit;
		usleep(40_000);
	}
	my $state = $node->safe_psql('postgres',
		"SELECT pid, backend_type, state, wait_event_type, wait_event, backend_xmin, left(query, 100) FROM pg_stat_activity WHERE datname IS NOT NULL");
	die 'gave up waiting for ' . ($what || $query)
	  . "\nlast answer: " . (defined $out ? $out : '(none)') . " $err\nsessions:\n$state\n";
}

# Wait until the server takes connections (again).  The query goes on psql's
# command line: through a pipe, it breaks when the connection is refused.  Not at
# once: the postmaster may not have noticed yet that a process was killed.
sub wait_until_up
{
	my ($node) = @_;
	my $start = time;
	my @psql = ('psql', '-XAtq', '-d', $node->connstr('postgres'), '-c', 'SELECT 1');
	my ($out, $err);
	usleep(200_000);
	until (IPC::Run::run(\@psql, '>', \$out, '2>', \$err))
	{
		die "server does not come up: $err" if time - $start > $TIMEOUT;
		usleep(100_000);
	}
	return;
}

# Wait until a move is in a phase (pattern of LIKE); returns the worker's pid.
sub wait_for_phase
{
	my ($node, $phase, %options) = @_;
	poll_until($node,
		"SELECT count(*) > 0 FROM index_mover_progress WHERE phase LIKE '$phase'",
		't', "phase \"$phase\"", %options);
	return worker_pid($node, %options);
}

# The pid of the process that moves (one of them).
sub worker_pid
{
	my ($node, %options) = @_;
	return $node->safe_psql($options{dbname} || 'postgres',
		'SELECT pid FROM index_mover_progress WHERE pid IS NOT NULL ORDER BY started_at DESC LIMIT 1');
}

# Wait until no process of ours works in this database any more.
sub wait_for_no_worker
{
	my ($node, %options) = @_;
	return poll_until($node,
		"SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type LIKE 'index\\_mover%' AND backend_type NOT LIKE '%janitor%' AND datname = current_database()",
		't', 'end of all workers', %options);
}

# Wait until a job has ended and its last worker has said so.  Not by the view of
# the running moves: there, a job whose worker is still starting is not yet seen.
sub wait_for_job_end
{
	my ($node, $job, %options) = @_;
	return poll_until($node, "SELECT NOT index_mover_job_is_alive($job)", 't', "the end of job $job", %options);
}

# Something has taken so many seconds, and had to be done within these.
sub soon_ok
{
	my ($seconds, $limit, $name) = @_;
	note sprintf('%s: %.2f s, on an idle machine less than %s s', $name, $seconds, $limit);
	return cmp_ok($seconds, '<', $limit * $SLACK, $name);
}

# Make the function $name(int): a build of an index with it waits while somebody
# holds the advisory lock of that number.
sub make_gate
{
	my ($node, $name, $lock, $db) = @_;
	$node->safe_psql($db || 'postgres', <<SQL);
CREATE FUNCTION $name(i int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS \$\$
BEGIN
	PERFORM pg_advisory_lock_shared($lock);
	PERFORM pg_advisory_unlock_shared($lock);
	RETURN i;
END \$\$;
SQL
	return;
}

# Kill a rebuild and a copy, so that both leave behind what they can: an invalid
# index of table behind_rebuild, and a file for behind_copy.  Both tables are
# made here, with indexes in regress_slow.
sub leave_behind
{
	my ($node, $db) = @_;
	make_gate($node, 'behind_gate', 43, $db);
	$node->safe_psql($db, <<'SQL');
SET default_tablespace = regress_slow;
CREATE TABLE behind_rebuild (i int);
INSERT INTO behind_rebuild SELECT generate_series(1, 50);
CREATE INDEX behind_rebuild_i ON behind_rebuild (behind_gate(i));
CREATE TABLE behind_copy (i int);
INSERT INTO behind_copy SELECT generate_series(1, 50000);
CREATE INDEX behind_copy_i ON behind_copy (i);
SQL
	my %kill = (
		rebuild => [ 'building index', '{}' ],
		copy    => [ 'throttled', '{"max_rate": "64kB"}' ]);
	foreach my $method ('rebuild', 'copy')
	{
		my ($phase, $settings) = @{ $kill{$method} };
		my $gate = IndexMover::Session->new($node, dbname => $db);
		$gate->run('SELECT pg_advisory_lock(43)');
		$node->safe_psql($db, "SELECT move_indexes('behind_$method', 'regress_fast', '$method', wait => false, settings => '$settings')");
		kill 'KILL', wait_for_phase($node, $phase, dbname => $db);
		poll_until($node, "SELECT pg_postmaster_start_time() IS NOT NULL AND NOT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'index_mover')
		                   AND NOT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory')",
			't', 'restart after a kill');
		$gate->end;
	}
	return;
}

# ---------------------------------------------------------------------------
# Oracles as tests
# ---------------------------------------------------------------------------

# Every index of the table answers every key rightly, and amcheck is content.
sub verdict_ok
{
	my ($node, $table, $name, %options) = @_;
	my $max = $options{max_keys} ? ", $options{max_keys}" : '';
	my ($verdict, $keys, $compared, $wrong) = split /\|/, $node->safe_psql($options{dbname} || 'postgres',
		"SELECT verdict, keys, compared, wrong FROM oracle.examine('$table'$max)");
	$count{'keys looked up'} += $keys;
	$count{'rows compared both ways'} += $compared;
	$count{'rows missing, extra, or with another key'} += $wrong;
	return like($verdict, qr/^[1-9][0-9]* right$/, "$name: look-up both ways, amcheck");
}

# No orphaned file, no missing file.
sub files_ok
{
	my ($node, $name, %options) = @_;
	my $files = $node->safe_psql($options{dbname} || 'postgres', 'SELECT * FROM oracle.files()');
	$count{'looks for orphaned and missing files'}++;
	$count{'orphaned bytes found'} += List::Util::sum0($files =~ /^orphan\|.*\|(\d+)$/mg);
	$count{'files missing'} += () = $files =~ /^(?!orphan)./mg;
	return is($files, '', "$name: no orphaned and no missing file");
}

# Nothing of ours is left in catalogs, locks, slots, processes: at the latest
# after "within" seconds (default 0.5, because a process takes its time to exit).
sub leftovers_ok
{
	my ($node, $name, %options) = @_;
	my $deadline = time + (exists $options{within} ? $options{within} : 0.5) * $SLACK;
	my $left;
	while (1)
	{
		$left = $node->safe_psql($options{dbname} || 'postgres', 'SELECT * FROM oracle.leftovers()');
		last if $left eq '' || time > $deadline;
		usleep(50_000);
	}
	$count{'looks for leftovers'}++;
	$count{'leftovers found'} += () = $left =~ /^./mg;
	return is($left, '', "$name: nothing left over");
}

# The catalogs say of the indexes what they said at oracle.remember_metadata().
# With restarted => 1 the numbers of scans are not compared: a crash, or an
# immediate shutdown, loses all statistics.
sub metadata_ok
{
	my ($node, $table, $name, %options) = @_;
	my $but = $options{restarted} ? "attribute <> 'scans'" : 'true';
	my ($compared, @changes) = split /\n/, $node->safe_psql($options{dbname} || 'postgres', <<SQL);
SELECT count(*) FROM oracle.old_metadata WHERE rel = '$table'::regclass::text AND $but;
SELECT * FROM oracle.metadata_changes('$table') WHERE $but;
SQL
	$count{'attributes of indexes compared'} += $compared;
	$count{'attributes of indexes lost or changed'} += @changes;
	return is($compared ? join("\n", @changes) : 'nothing was remembered',
		'', "$name: definition, options, statistics, dependencies as before");
}

# pg_dump --schema-only without the words about tablespaces.
sub dump_schema
{
	my ($node, %options) = @_;
	my ($out, $err);
	my @key = ('--restrict-key=k');
	IPC::Run::run([ 'pg_dump', '--schema-only', @key, '-d', $node->connstr($options{dbname} || 'postgres') ],
		'>', \$out, '2>', \$err)
	  or die "pg_dump failed: $err";
	$out =~ s/^SET default_tablespace = .*\n\n?//mg;
	$out =~ s/^(-- Name: .*); Tablespace: .*$/$1/mg;
	return $out;
}

sub dump_ok
{
	my ($node, $before, $name, %options) = @_;
	return is(dump_schema($node, %options), $before, "$name: pg_dump as before, except for tablespaces");
}

# A standby that has replayed everything has the rows and the indexes of its
# primary, and no file more or less.  Without hiding indexes, which a standby
# can't do, only a table's single index is looked up there; the others are asked
# by amcheck if they are btrees.
sub standby_ok
{
	my ($primary, $standby, $tables, $name, %options) = @_;
	my $db = $options{dbname} || 'postgres';
	$primary->safe_psql($db, 'CHECKPOINT');
	$primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert'));
	files_ok($standby, "$name, standby", %options);
	my $scan = 'SET enable_indexscan = off; SET enable_indexonlyscan = off; SET enable_bitmapscan = off;';
	foreach my $table (@$tables)
	{
		my $rows = "$scan SELECT count(*), coalesce(sum(hashtextextended(t::text, 0)), 0) FROM $table t";
		is($standby->safe_psql($db, $rows), $primary->safe_psql($db, $rows), "$name, standby: the rows of $table");
		my $one = $primary->safe_psql($db, "SELECT count(*) FROM pg_index WHERE indrelid = '$table'::regclass") == 1;
		my ($rc, $out, $err) = $standby->psql($db,
			$one ? "SELECT oracle.verdict('$table'" . ($options{max_keys} ? ", $options{max_keys}" : '') . ')'
			: "SELECT oracle.structure(indexrelid) FROM pg_index WHERE indrelid = '$table'::regclass AND indisvalid");
		ok($rc == 0 && (!$one || $out =~ /^1 right$/), "$name, standby: the indexes of $table") or diag "$out $err";
	}
	return;
}

# All of them, for use after each move; true if all is right.
sub all_right
{
	my ($node, $table, $name, %options) = @_;
	my $right = leftovers_ok($node, $name, %options);
	$right = files_ok($node, $name, %options) && $right;
	$right = metadata_ok($node, $table, $name, %options) && $right unless $options{no_metadata};
	$right = verdict_ok($node, $table, $name, %options) && $right;
	return $right;
}

# A fault has been survived: nothing is left over, no file is orphaned or
# missing, the catalogs say what they said, every index answers rightly; and the
# next call, $next, moves.  With count => the fault's kind it is counted.
sub survived_ok
{
	my ($node, $table, $name, $next, %options) = @_;
	wait_for_no_worker($node);
	my $right = all_right($node, $table, $name, within => 5, %options);
	my ($rc, $out, $err) = $node->psql('postgres', $next);
	$right = (like($out, qr/^moved\b/, "$name: the next call works") || (diag($err), 0)) && $right;
	count_fault($options{count}) if $options{count};
	return $right;
}

# Count a fault of this kind as injected (or so many, that are looked after
# together), and as survived if no assertion has failed since the fault before (or
# since this file began): to be called behind the last of those that ask whether it
# was there, and what it has left.
my %before_fault;

sub count_fault
{
	my ($kind, $times) = @_;
	$times //= 1;
	my %now = (failed => scalar(grep { !$_ } Test::More->builder->summary),
		map { $_ => $count{$_} // 0 } 'leftovers found', 'orphaned bytes found');
	my %new = map { $_ => $now{$_} - ($before_fault{$_} // 0) } keys %now;
	$count{"fault, $kind, injected"} += $times;
	$count{"fault, $kind, survived"} += $new{failed} ? 0 : $times;
	$count{"fault, $kind, leftovers"} += $new{'leftovers found'};
	$count{"fault, $kind, orphaned bytes"} += $new{'orphaned bytes found'};
	%before_fault = %now;
	return $new{failed} ? 0 : 1;
}

1;
