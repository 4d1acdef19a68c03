# What the server knows of the device below a tablespace: the marker in its location, the
# state file, the look before recovery.  Each way to lose a device, to move one, and to
# copy a server; which verdict it gets, and that it is the right one.
#
# Fault (storage): the device of the indexes comes back empty after a crash, or a stop; a server
#   starts without it and gets it back; another device, or that of another server, is in its
#   place; a server runs without the library; one is restored from a backup, or rewound
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use File::Copy qw(copy);
use File::Path qw(make_path rmtree);
use IndexMover::Evidence;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = PostgreSQL::Test::Utils::tempdir();
my $location = "$dir/fast";
make_path($location);
my $node = new_node('evidence', streaming => 1, conf => <<CONF);
shared_preload_libraries = 'index_mover'
wal_log_hints = on
wal_level = logical
max_prepared_transactions = 2
wal_keep_size = 1GB
checkpoint_timeout = 1h
CONF

sub value { return $node->safe_psql('postgres', $_[0]); }

# ---- what is on record ---------------------------------------------------------------------------
my $oid;
my $version;

sub marker { return "$_[0]/index_mover.$version"; }

# The numbers below which files are lost, unknown, and not vouched for.
sub known { return known_on_record($_[0] // $node, $oid); }
sub verdict { return verdict_on_record($_[0] // $node, $oid); }

sub verdict_is
{
	my ($expected, $name, $of) = @_;
	return is(verdict($of), $expected, "$name: $expected") || diag(slurp_file(state_file($of // $node)));
}

# Wait until the janitor has looked at all pages, and the matter is settled.
sub settled
{
	my ($of) = @_;
	return wait_until('settled', sub { verdict($of) eq 'same' });
}

$node->backup('before');

# ---- a new tablespace ----------------------------------------------------------------------------
value("CREATE TABLESPACE fast LOCATION '$location'");
$oid = value("SELECT oid FROM pg_tablespace WHERE spcname = 'fast'");
$version = (map { m{([^/]+)$} } glob("$location/PG_*"))[0];
wait_until('marked', sub { -e marker($location) && verdict() eq 'same' });
ok(1, 'a new tablespace is marked, and known');

value(<<'SQL');
CREATE TABLE t (id int PRIMARY KEY, v int);
INSERT INTO t SELECT g, g % 100 FROM generate_series(1, 20000) g;
CREATE INDEX t_v ON t (v);
SELECT move_indexes('t', 'fast');
SELECT oracle.remember_keys('t');
SQL

# ---- the location of another server --------------------------------------------------------------
# A backup from before CREATE TABLESPACE is restored on the same host, while the original runs.
{
	my @files = map { $node->data_dir . "/$_" }
	  split /\n/, value("SELECT pg_relation_filepath(indexrelid) FROM pg_index WHERE indrelid = 't'::regclass");
	my $restored = PostgreSQL::Test::Cluster->new('restored');
	$restored->init_from_backup($node, 'before', has_streaming => 1);
	$restored->start;
	$node->wait_for_catchup($restored);
	my $marker = slurp_file(marker($location));
	$restored->promote;
	like($restored->safe_psql('postgres', 'SELECT kind, object, detail FROM index_mover_check()'),
		qr/^foreign device\|fast\|Another server uses .* location, with data directory ".*evidence_data\/pgdata" on host ".+"\.$/,
		'a restored server knows whose the location is');
	my ($rc, $out, $err) = $restored->psql('postgres', "SELECT name, status FROM move_indexes('t', 'pg_default')");
	is($out, "t_v|moved\nt_pkey|moved", 'what it moves away');
	like(slurp_file($restored->logfile), qr/WARNING: .*did not remove file "pg_tblspc\/$oid\/.*\n.*DETAIL:  Another server uses/,
		'stays, with a warning');
	is((grep { -s $_ } @files), 2, 'as the live server uses it');
	is($restored->safe_psql('postgres', "SELECT count(*) FROM index_mover_cleanup() WHERE action ~ 'kept'"), 2, 'also in a cleanup');
	is((grep { -s $_ } @files), 2, 'which removes nothing either');
	is(slurp_file(marker($location)), $marker, 'the marker is that of the live server');
	# nor what a copy that is canceled has made there
	my $log = -s $restored->logfile;
	my $job = begin_job($restored, 't_v', 'fast', max_rate => '64kB');
	poll_until($restored, "SELECT count(*) FROM index_mover_progress WHERE job = $job AND blocks_done > 0", 1, 'a copy to it');
	my $made = $restored->data_dir . "/pg_tblspc/$oid/$version/" . $restored->safe_psql('postgres',
		"SELECT database || '/' || relfilenumber FROM index_mover.ledger WHERE job = $job");
	$restored->safe_psql('postgres', "SELECT cancel_move($job)");
	wait_for_job_end($restored, $job);
	wait_for_no_worker($restored);
	ok(-s $made, 'the new file of a copy that is canceled stays, too');
	like(slurp_file($restored->logfile, $log), qr/WARNING: .*did not remove file "pg_tblspc\/$oid\//, 'with a warning');
	$restored->stop;
	unlink $made;
	verdict_ok($node, 't', 'the live server', max_keys => 200);
}

my %uses = (
	btree => [ 'i int', 'g', 'i', 'i = 7' ],
	hash => [ 'i int', 'g', 'i', 'i = 7' ],
	gin => [ 'i int[]', 'ARRAY[g, g + 1]', 'i', "i \@> '{7}'" ],
	gist => [ 'i int4range', 'int4range(g, g + 1)', 'i', "i \@> 7" ],
	spgist => [ 'i point', 'point(g, g)', 'i', "i <\@ box '(6.5,6.5),(7.5,7.5)'" ],
	brin => [ 'i int', 'g', 'i', 'i = 7' ],
	bloom => [ 'i int', 'g', 'i', 'i = 7' ]);
# Healthy indexes of each access method: empty, of one row, of some pages, with changes, unlogged.
value('CREATE EXTENSION bloom');
my $kinds = faults('7 of 29 healthy indexes of each access method are made') ? 29 : 7;
sub make_healthy
{
	my ($on) = @_;
	foreach my $am (sort keys %uses)
	{
		my ($column, $value, $indexed) = @{ $uses{$am} };
		$on->safe_psql('postgres', join '', map {
				my $rows = (0, 1, 100, 3000, 700, 0, 10)[ $_ % 7 ] + int($_ / 7) * 37;
				my $table = "healthy_${am}_$_";
				('CREATE' . ($_ % 7 > 4 ? ' UNLOGGED' : '') . " TABLE $table ($column);\n")
				  . "INSERT INTO $table SELECT $value FROM generate_series(1, $rows) g;\n"
				  . "CREATE INDEX ${table}_i ON $table USING $am ($indexed) TABLESPACE fast;\n"
				  . ($_ % 2 ? "DELETE FROM $table; INSERT INTO $table SELECT $value FROM generate_series(50, $rows + 60) g;\n" : '')
			} 1 .. $kinds);
	}
	return;
}
sub drop_healthy
{
	my ($on) = @_;
	return $on->safe_psql('postgres', 'DROP TABLE ' . join ', ', map { my $am = $_; map { "healthy_${am}_$_" } 1 .. $kinds } keys %uses);
}
make_healthy($node);

# ---- the same device -----------------------------------------------------------------------------
sub write_some { return value('UPDATE t SET v = v + 1 WHERE id % 50 = 0; INSERT INTO t SELECT max(id) + 1, 7 FROM t'); }
sub planned { return value("SELECT string_agg(name || ' ' || status, ', ') FROM heal_tablespace('fast', dry_run => true)"); }
sub plan_of { return $node->safe_psql('postgres', 'SET enable_seqscan = off; EXPLAIN (COSTS off) SELECT * FROM t WHERE id = 7'); }

sub crash { return $node->stop('immediate'); }
sub kill_all { return $node->kill9; }
# The children of a killed postmaster need a moment.
sub start
{
	return wait_until('started', sub { $node->{_pid} = undef; return $node->start(fail_ok => 1); });
}
sub watched { return wait_until_watched($node); }
watched();
foreach my $end ([ 'a restart', sub { $node->stop } ], [ 'an immediate stop', \&crash ], [ 'a kill of the postmaster', \&kill_all ])
{
	write_some();
	$end->[1]->();
	start();
	verdict_is('same', "after $end->[0]");
	watched();
	is(planned(), '', "after $end->[0]: nothing is lost");
}

# ---- a device that is moved, or copied -----------------------------------------------------------
sub move_by
{
	my ($what) = @_;
	rename $location, "$location.old" or die $!;
	make_path($location);
	system("cp -a '$location.old'/$what '$location'") == 0 or die;
	rmtree("$location.old");
	return;
}

sub damage_marker
{
	my $text = slurp_file(marker($location));
	unlink marker($location);
	append_to_file(marker($location), 'x' . substr($text, 1));
	return;
}

foreach my $case (
	[ 'copied after a stop', sub { $node->stop; move_by('*') }, 'unknown' ],
	[ 'copied after a crash', sub { crash(); move_by('*') }, 'unknown' ],
	[ 'copied without the marker after a stop', sub { $node->stop; move_by('PG_*') }, 'unknown' ],
	[ 'without the marker after a crash', sub { crash(); unlink marker($location) }, 'unknown' ],
	[ 'with a damaged marker after a crash', sub { crash(); damage_marker() }, 'unknown' ],
	[ 'moved by renames', sub { $node->stop; rename $location, "$location.2"; rename "$location.2", $location; }, 'same' ])
{
	my ($name, $do, $verdict) = @$case;
	write_some();
	$do->();
	my $from = -s $node->logfile;
	my ($before) = known();
	start();
	my ($lost, $unknown, $vouched) = known();
	is($lost, 0, "$name: no number of lost files");
	settled();
	my $log = slurp_file($node->logfile, $from);
	like($log, qr/LOG: .*all indexes in tablespace $oid are whole/, "$name: known again, and the log says so") if $verdict eq 'unknown';
	unlike($log, qr/all indexes in tablespace/, "$name: nothing was to be read") if $verdict eq 'same';
	ok(-e marker($location), "$name: marked");
	is(planned(), '', "$name: nothing is lost");
	watched();
}

# ---- a server without the library ----------------------------------------------------------------
foreach my $end ('fast', 'immediate')
{
	$node->stop($end);
	$node->append_conf('postgresql.conf', "shared_preload_libraries = ''");
	$node->start;
	write_some();
	like(value("SELECT kind, object, detail FROM index_mover_check()"),
		qr/^evidence missing\|fast\|The library is not in shared_preload_libraries\.$/, 'without the library: index_mover_check() says so');
	$node->stop($end);
	$node->append_conf('postgresql.conf', "shared_preload_libraries = 'index_mover'");
	my $from = -s $node->logfile;
	$node->start;
	settled();
	like(slurp_file($node->logfile, $from), qr/all indexes in tablespace $oid are whole/,
		"run without the library, $end: not known, until read");
	watched();
}

# and its device is copied meanwhile: a job marks the copy, with a number that is not on record
foreach my $end ('fast', 'immediate')
{
	$node->stop;
	$node->append_conf('postgresql.conf', "shared_preload_libraries = ''");
	move_by('*');
	$node->start;
	is(value("SELECT string_agg(status, ' ') FROM move_indexes('t', 'pg_default')"), 'moved moved', 'without the library: moved away');
	is(value("SELECT string_agg(status, ' ') FROM move_indexes('t', 'fast')"), 'moved moved', 'without the library: moved to the copy');
	$node->stop($end);
	$node->append_conf('postgresql.conf', "shared_preload_libraries = 'index_mover'");
	$node->start;
	my $name = "copied without the library, then a job, then $end";
	is((known())[0], 0, "$name: no number of lost files");
	settled();
	is(planned(), '', "$name: nothing is lost");
	watched();
}

drop_healthy($node);

# ---- the device comes back empty -----------------------------------------------------------------
my %empty = (
	'everything' => sub { rmtree($location); make_path($location) },
	"the version's directory" => sub { rmtree("$location/$version") },
	"the databases' directories" => sub { rmtree([ glob("$location/$version/*") ]) },
	'all but empty directories' => sub { rmtree($location); make_path("$location/$version", { mode => 0700 }) });
foreach my $what (sort keys %empty)
{
	value('CHECKPOINT');
	write_some();
	crash();
	$empty{$what}->();
	start();
	verdict_is('lost', "$what gone in a crash");
	is(value('SET enable_seqscan = off; SELECT count(*) FROM t WHERE id = 7'), 1, "$what gone in a crash: the first query is right");
	is(value("SELECT severity, kind, object FROM index_mover_check() WHERE kind = 'lost device'"), 'error|lost device|fast',
		"$what gone in a crash: index_mover_check() says so");
	crash();
	start();
	verdict_is('lost', "$what gone in a crash, and another crash");
	note value("SELECT name, status, detail FROM heal_tablespace('fast')");
	value('REINDEX TABLE t');
	like(plan_of(), qr/Index/, 'healed: plans use the index');
	$node->restart;
	settled();
	watched();
}

# A look while the server runs finds the directory empty, but files are expected there: a recovery
# that fills it makes no whole ones.
foreach my $what ("the databases' directories", 'all but empty directories')
{
	value('CHECKPOINT');
	write_some();
	$empty{$what}->();
	value('SELECT count(*) FROM index_mover_check()');
	wait_until('looked at', sub { -e marker($location) });
	crash();
	start();
	verdict_is('lost', "$what gone while the server runs, then a crash");
	is(value('SET enable_seqscan = off; SELECT count(*) FROM t WHERE id = 7'), 1,
		"$what gone while the server runs: the first query is right");
	value('REINDEX TABLE t');
	$node->restart;
	settled();
	watched();
}

# What was made since the last checkpoint is in the WAL, and recovery makes it whole.  The counter
# of OIDs in that checkpoint is ahead of it.
{
	my $name = 'made after the last checkpoint';
	value('CHECKPOINT');
	value('CREATE TABLE late (i int) TABLESPACE fast; INSERT INTO late SELECT generate_series(1, 5000);
		CREATE INDEX late_i ON late (i) TABLESPACE fast');
	write_some();
	crash();
	$empty{'everything'}->();
	start();
	verdict_is('lost', $name);
	is(value('SELECT count(*) FROM late'), 5000, "$name: a table is whole");
	is(value("SELECT string_agg(name, ' ' ORDER BY name) FROM heal_tablespace('fast', dry_run => true)"), 't_pkey t_v',
		"$name: only what is from before is lost");
	like(value('SET enable_seqscan = off; EXPLAIN SELECT * FROM late WHERE i = 7'), qr/late_i/, "$name: the index is in use");
	value('DROP TABLE late; REINDEX TABLE t');
	$node->restart;
	settled();
	watched();
}

# ---- what uses a lost index ----------------------------------------------------------------------
# whatever it is, it ends soon, in the right answer or an error
foreach my $am (sort keys %uses)
{
	my ($column, $value, $indexed) = @{ $uses{$am} };
	value("CREATE TABLE use_$am ($column); INSERT INTO use_$am SELECT $value FROM generate_series(1, 5000) g;
		CREATE INDEX use_${am}_i ON use_$am USING $am ($indexed) TABLESPACE fast");
}
value(<<'SQL');
CREATE TABLE use_exclusion (r int4range, EXCLUDE USING gist (r WITH &&) USING INDEX TABLESPACE fast);
INSERT INTO use_exclusion SELECT int4range(g * 2, g * 2 + 1) FROM generate_series(1, 1000) g;
CREATE TABLE use_key (i int REFERENCES t (id));
CREATE TABLE use_parts (i int, PRIMARY KEY (i) USING INDEX TABLESPACE fast) PARTITION BY RANGE (i);
CREATE TABLE use_parts_1 PARTITION OF use_parts FOR VALUES FROM (0) TO (3000);
CREATE TABLE use_parts_2 PARTITION OF use_parts FOR VALUES FROM (3000) TO (9000);
INSERT INTO use_parts SELECT generate_series(1, 5000);
CREATE FUNCTION use_function() RETURNS SETOF t LANGUAGE sql STABLE AS 'SELECT * FROM t WHERE id = 7';
CREATE TABLE use_toast (id int, big text);
ALTER TABLE use_toast ALTER big SET STORAGE EXTERNAL;
CREATE TABLE use_apply (id int PRIMARY KEY, v int);
CREATE PUBLICATION use_apply FOR TABLE use_apply;
SELECT pg_create_logical_replication_slot('use_apply', 'pgoutput');
SQL
value('INSERT INTO use_toast SELECT g, repeat(md5(g::text), 200) FROM generate_series(1, 50) g');
my $toast_index = 'pg_toast.pg_toast_' . value("SELECT 'use_toast'::regclass::oid") . '_index';
value("SET allow_system_table_mods = on; ALTER INDEX $toast_index SET TABLESPACE fast");
value('CREATE DATABASE subscriber');
sub subscriber { return $node->safe_psql('subscriber', $_[0]); }
subscriber('CREATE EXTENSION index_mover CASCADE; CREATE TABLE use_apply (id int PRIMARY KEY USING INDEX TABLESPACE fast, v int)');
subscriber("CREATE SUBSCRIPTION use_apply CONNECTION 'host=" . $node->host . ' port=' . $node->port . " dbname=postgres'
	PUBLICATION use_apply WITH (create_slot = false, slot_name = 'use_apply', copy_data = false)");
value('INSERT INTO use_apply SELECT g, 0 FROM generate_series(1, 5000) g');
sub applied
{
	my ($condition, $n) = @_;
	return $node->poll_query_until('subscriber', "SELECT count(*) = $n FROM use_apply WHERE $condition");
}
ok(applied('true', 5000), 'logical replication works');
value('CHECKPOINT');
foreach my $am (sort keys %uses)
{
	my ($column, $value) = @{ $uses{$am} };
	value("INSERT INTO use_$am SELECT $value FROM generate_series(5001, 5021) g");
}
write_some();
# (not a stop, before which each test looks for a TOAST table apart from its table)
kill_all();
$empty{'everything'}->();
start();
# in a session, "SET" takes effect before each statement
sub attempt
{
	my ($sql) = @_;
	my ($rc, $out, $err) = $node->psql('postgres', "SET statement_timeout = '20s'; SET enable_seqscan = off; $sql", timeout => 60);
	return ($rc, $out, $err);
}
foreach my $am (sort keys %uses)
{
	my ($column, $value, $indexed, $condition) = @{ $uses{$am} };
	my ($rc, $out, $err) = attempt("SELECT count(*) FROM use_$am WHERE $condition");
	is($out, $am eq 'gin' ? 2 : 1, "lost $am: a query has the right answer");
	($rc, $out, $err) = attempt("INSERT INTO use_$am SELECT $value FROM generate_series(6000, 6100) g");
	my $fails = $am eq 'hash' ? qr/ERROR:  index "use_hash_i" contains corrupted page at block 0/ : qr/ERROR:  could not read block/;
	like($err, $fails, "lost $am: an insert fails");
	($rc, $out, $err) = attempt("VACUUM use_$am");
	unlike($err, qr/timeout|server closed/, "lost $am: VACUUM ends");
}
foreach my $case (
	[ 'a unique index', 'INSERT INTO t VALUES (7, 7)', 'could not read block' ],
	[ 'ON CONFLICT', 'INSERT INTO t VALUES (7, 7) ON CONFLICT (id) DO NOTHING', 'no unique or exclusion constraint|could not read block' ],
	[ 'an exclusion constraint', "INSERT INTO use_exclusion VALUES ('[2,9)')", 'could not open file' ],
	[ 'COPY', "COPY t FROM PROGRAM 'echo 7,7' (FORMAT csv)", 'could not read block' ],
	[ 'a partition', 'INSERT INTO use_parts VALUES (4000)', 'could not open file' ],
	[ 'a value in TOAST', 'SELECT sum(length(big)) FROM use_toast', 'could not (?:read block|open file)' ],
	[ 'a new value in TOAST', "INSERT INTO use_toast VALUES (51, repeat('y', 6000))", 'could not (?:read block|open file)' ])
{
	my ($what, $sql, $error) = @$case;
	my ($rc, $out, $err) = attempt($sql);
	like($err, qr/ERROR:  .*(?:$error)/, "lost: $what fails");
}
value('BEGIN; LOCK TABLE use_parts_1; PREPARE TRANSACTION $$lock$$');
is((attempt('SELECT count(*) FROM use_parts WHERE i = 4000'))[1], 1,
	'lost: a query of a partition has the right answer, whoever locks another one');
value('ROLLBACK PREPARED $$lock$$');
is((attempt('SELECT count(*) FROM use_function()'))[1], 1, 'lost: so has one of a function that the planner puts in line');
# the apply of logical replication fails, and tries again
my $from_apply = -s $node->logfile;
value('INSERT INTO use_apply VALUES (7000, 0); UPDATE use_apply SET v = 1 WHERE id = 7');
wait_until('apply fails', sub { slurp_file($node->logfile, $from_apply) =~ /ERROR: .*could not (?:read block|open file)/ });
is(subscriber('SELECT count(*) FROM use_apply WHERE id = 7000'), 0, 'lost: logical replication waits');
is(subscriber("SELECT string_agg(name || ' ' || status, ' ') FROM heal_tablespace('fast')"), 'use_apply_pkey moved',
	'lost: the index of a subscriber is healed');
ok(applied('id = 7000 OR v = 1', 2), 'healed: logical replication goes on');
subscriber('ALTER SUBSCRIPTION use_apply DISABLE; ALTER SUBSCRIPTION use_apply SET (slot_name = NONE); DROP SUBSCRIPTION use_apply');
$node->poll_query_until('postgres', "SELECT NOT active FROM pg_replication_slots WHERE slot_name = 'use_apply'") or die;
value('SELECT pg_drop_replication_slot($$use_apply$$)');
value('DROP DATABASE subscriber WITH (FORCE)');
my ($rc_key, undef, $err_key) = attempt('INSERT INTO use_key VALUES (7)');
ok($rc_key == 0 || $err_key =~ /could not read block/, 'lost: a foreign key is checked, or fails');
is(value("SELECT string_agg(DISTINCT status, ' ') FROM heal_tablespace('fast')"), 'moved', 'lost: all are rebuilt');
foreach my $am (sort keys %uses)
{
	my ($column, $value, $indexed, $condition) = @{ $uses{$am} };
	like(value("SET enable_seqscan = off; EXPLAIN SELECT * FROM use_$am WHERE $condition"), qr/use_${am}_i/, "healed $am: it is used");
	is((attempt("SELECT count(*) FROM use_$am WHERE $condition"))[1], $am eq 'gin' ? 2 : 1, "healed $am: the answer is right");
}
is((attempt('SELECT sum(length(big)) FROM use_toast'))[1], 50 * 32 * 200, 'healed: the values in TOAST are there');
value('DROP PUBLICATION use_apply; DROP FUNCTION use_function()');
value("DROP TABLE use_exclusion, use_key, use_parts, use_toast, use_apply, " . join ', ', map { "use_$_" } keys %uses);
$node->restart;
settled();
watched();

# ---- a start without the device, which is mounted late -------------------------------------------
sub unmount { rename $location, "$location.away" or die $!; make_path($location); return; }
sub mount { rmtree($location); rename "$location.away", $location or die $!; return; }

foreach my $case (
	# how the server ends, whether there is something to replay, whether it is restarted for the mount
	[ 'fast', 1, 'restart', 'same' ],
	[ 'fast', 1, 'run', 'same' ],
	[ 'immediate', 1, 'restart', 'lost' ],
	[ 'immediate', 1, 'run', 'lost' ],
	[ 'immediate', 0, 'restart', 'same' ],
	[ 'immediate', 0, 'run', 'same' ])
{
	my ($end, $changes, $how, $expected) = @$case;
	my $name = "mounted late, after $end, " . ($changes ? 'changes' : 'no change') . ", in a $how";
	value('CHECKPOINT');
	write_some() if $changes;
	$node->stop($end);
	unmount();
	start();
	watched();
	my ($rc) = $node->psql('postgres', 'SET enable_seqscan = off; SELECT count(*) FROM t WHERE id = 7');
	isnt($rc, 0, "$name: the index cannot be used before") if $expected eq 'same';
	$node->stop if $how eq 'restart';
	mount();
	start() if $how eq 'restart';
	if ($expected eq 'same')
	{
		watched();
		is(value('SET enable_seqscan = off; SELECT count(*) FROM t WHERE id = 7'), 1, "$name: and then");
		is(value("SELECT count(*) FROM heal_tablespace('fast', dry_run => true)"), 0, "$name: nothing is to be healed");
	}
	wait_until($name, sub { verdict() eq $expected });
	verdict_is($expected, $name);
	next if $expected eq 'same';
	is(value('SET enable_seqscan = off; SELECT count(*) FROM t WHERE id = (SELECT max(id) FROM t)'), 1, "$name: no old index is used");
	isnt($node->psql('postgres', 'INSERT INTO t SELECT max(id), 0 FROM t'), 0, "$name: no duplicate gets in");
	# the files are whole ones, of a moment before: nothing else tells; and whoever heals looks at the device first
	is(value("SELECT string_agg(status, ' ') FROM heal_tablespace('fast')"), 'moved moved', "$name: both indexes are healed");
	$node->restart;
	settled();
	watched();
}

# a recovery without the device that fails is done again, from the same checkpoint, on the device, or a copy
foreach my $what ('the mount', 'a copy')
{
	my $name = "a recovery that fails, then $what";
	my $unreadable = $node->data_dir . '/pg_twophase';
	value('CHECKPOINT');
	write_some();
	$node->stop('immediate');
	unmount();
	chmod 0000, $unreadable or die "$unreadable: $!";
	foreach my $start (1, 2)
	{
		is($node->start(fail_ok => 1), 0, "$name: start $start fails");
	}
	verdict_is('lost', "$name: before the mount");
	chmod 0700, $unreadable or die "$unreadable: $!";
	mount();
	move_by('*') if $what eq 'a copy';
	start();
	watched();
	isnt(verdict(), 'lost', "$name: nothing is lost");
	is(value('SET enable_seqscan = off; SELECT count(*) FROM t WHERE id = (SELECT max(id) FROM t)'), 1, "$name: the index is used");
	is($node->psql('postgres', 'INSERT INTO t SELECT max(id) + 1, 0 FROM t'), 0, "$name: writes work");
	is(value("SELECT count(*) FROM heal_tablespace('fast', dry_run => true)"), 0, "$name: nothing is to be healed");
	settled();
}
verdict_ok($node, 't', 'mounted late', max_keys => 200);

# ---- a location that cannot be looked at ---------------------------------------------------------
# Recovery fails there, or needs nothing.  What it could not see is not lost.
value('CHECKPOINT');
write_some();
crash();
chmod 0000, $location;
$node->{_pid} = undef;
is($node->start(fail_ok => 1), 0, 'a location without permissions: the server does not start');
verdict_is('unknown', 'a location without permissions');
chmod 0700, $location;
start();
is((known())[0], 0, 'a location with its permissions again: nothing is lost');
is(planned(), '', 'a location with its permissions again: nothing is to be healed');
settled();
watched();

# ---- a tablespace is dropped ---------------------------------------------------------------------
make_path("$dir/other");
value("CREATE TABLESPACE other LOCATION '$dir/other'");
wait_until('marked', sub { -e marker("$dir/other") });
value('DROP TABLESPACE other');
wait_until('removed', sub { !-e marker("$dir/other") });
is_deeply([ glob("$dir/other/*") ], [], 'DROP TABLESPACE leaves nothing');

# ---- a location that cannot be written -----------------------------------------------------------
make_path("$dir/other");
value("CREATE TABLESPACE other LOCATION '$dir/other'");
wait_until('marked', sub { -e marker("$dir/other") });
value('CREATE TABLE there TABLESPACE other AS SELECT 1 AS i');
unlink marker("$dir/other");
chmod 0500, "$dir/other";
is(value("SELECT kind, object, detail FROM index_mover_check()"),
	"evidence missing|other|The marker file could not be written to the tablespace's location: Permission denied.",
	'a location that cannot be written');
chmod 0700, "$dir/other";
is(value("SELECT count(*) FROM index_mover_check()"), 0, 'now it can');


# ---- standbys ------------------------------------------------------------------------------------
# Each has evidence of its own.  A base backup brings the state file of another server.
value('DROP TABLE there; DROP TABLESPACE other');
value("SELECT oracle.remember_keys('t')");
my %places;
sub make_standby
{
	my ($name) = @_;
	my $backup = $node->backup_dir . "/$name";
	$places{$name} = "$dir/$name";
	$node->run_log([ 'pg_basebackup', '-D', $backup, '-h', $node->host, '-p', $node->port, '-c', 'fast', '-X', 'stream', '--no-sync',
			"--tablespace-mapping=$location=$places{$name}" ]) or die 'pg_basebackup';
	# core's module does not like the link
	unlink "$backup/pg_tblspc/$oid" or die $!;
	my $standby = PostgreSQL::Test::Cluster->new($name);
	$standby->init_from_backup($node, $name, has_streaming => 1);
	symlink($places{$name}, $standby->data_dir . "/pg_tblspc/$oid") or die $!;
	return $standby;
}
my $standby = make_standby('standby');
ok(!-e marker($places{standby}), 'no marker in a base backup');
$standby->start;
verdict_is('unknown', 'a standby that was copied', $standby);
ok(-e marker($places{standby}), 'a standby that was copied: marked');
$node->wait_for_catchup($standby);
wait_until_watched($standby);
$standby->stop;
rmtree($places{standby});
make_path($places{standby});
value('CHECKPOINT');
write_some();
$standby->append_conf('postgresql.conf', 'ignore_invalid_pages = on');
$standby->start;
$node->wait_for_catchup($standby);
verdict_is('lost', 'a standby whose device was emptied', $standby);
is($standby->safe_psql('postgres', 'SET enable_seqscan = off; SELECT count(*) FROM t WHERE id = 7'), 1, 'a query there is right');
is($standby->safe_psql('postgres', "SELECT kind, object, command FROM index_mover_check() WHERE kind = 'lost device'"), 'lost device|fast|',
	'and index_mover_check() says so');
$standby->restart;
verdict_is('lost', 'after a restart', $standby);
$standby->append_conf('postgresql.conf', 'index_mover.heal_at_start = on');
$standby->reload;
$standby->promote;
$standby->poll_query_until('postgres', "SELECT count(*) = 2 FROM index_mover_history WHERE status = 'moved'
	AND started_at > pg_postmaster_start_time()") or die 'not healed';
verdict_ok($standby, 't', 'a standby that was promoted: healed', max_keys => 200);
$standby->restart;
settled($standby);
ok(1, 'and settled');

make_healthy($standby);

# ---- the old primary comes back by pg_rewind -----------------------------------------------------
write_some();
$node->stop;
$standby->stop;
my $settings = slurp_file($node->data_dir . '/postgresql.conf');
command_ok([ 'pg_rewind', '--target-pgdata', $node->data_dir, '--source-pgdata', $standby->data_dir ], 'pg_rewind');
unlink $node->data_dir . '/postgresql.conf';
append_to_file($node->data_dir . '/postgresql.conf', $settings);
$standby->start;
$node->enable_streaming($standby);
$node->set_standby_mode;
$node->start;
verdict_is('unknown', 'rewound');
ok(-e marker($location) && slurp_file(marker($location)) =~ /evidence_data/, 'rewound: the marker is its own');
$standby->wait_for_catchup($node);
$standby->stop;
$node->promote;
$node->restart;
settled();
verdict_ok($node, 't', 'rewound, and promoted', max_keys => 200);
is(planned(), '', 'rewound, and promoted: nothing is lost');
is(value("SELECT count(*) FROM index_mover_history WHERE job = (SELECT max(job) FROM index_mover_history)
	AND started_at > pg_postmaster_start_time()"), 0, 'rewound, and promoted: nothing was rebuilt');
done_testing();
