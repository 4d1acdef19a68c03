# heal_tablespace(): a device with nothing but indexes on it comes back empty, and one
# call brings them back: reads at once, then all of them, in place or elsewhere.
#
# Fault (storage): the device of the indexes comes back empty, after a clean shutdown, a
#   crash, a crash in mid-write, or while it is in use; one file is gone, or comes back; a crash,
#   a second loss, a cancel between two tries, or DROP EXTENSION while they are healed; another
#   index is in the making
use strict;
use warnings;

use File::Basename qw(dirname);
use FindBin;
use lib "$FindBin::RealBin/lib";
use File::Path qw(make_path rmtree);
use IPC::Run;
use IndexMover::Session;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

note has_sanitizer() ? 'with the sanitizers' : 'without sanitizers';

my $location = PostgreSQL::Test::Utils::tempdir() . '/mnt/fast';
make_path($location);
my $node = new_node('heal', conf => "shared_preload_libraries = 'index_mover'\nwal_level = logical\ncheckpoint_timeout = 1h\n");
value("CREATE TABLESPACE fast LOCATION '$location'");
value(<<'SQL');
CREATE TABLE t (id int PRIMARY KEY, u int UNIQUE, v int, words tsvector, p point, r int4range NOT NULL,
	EXCLUDE USING gist (r WITH &&));
INSERT INTO t SELECT g, g, g % 100, to_tsvector('simple', 'a' || g % 100), point(g, g), int4range(g * 2, g * 2 + 1)
  FROM generate_series(1, 3000) g;
CREATE INDEX t_v ON t (v);
CREATE INDEX t_hash ON t USING hash (v);
CREATE INDEX t_words ON t USING gin (words);
CREATE INDEX t_p ON t USING gist (p);
CREATE INDEX t_spgist ON t USING spgist (p);
CREATE INDEX t_brin ON t USING brin (id) WITH (pages_per_range = 1);
CREATE UNIQUE INDEX t_half ON t ((v * 1000000 + id)) WHERE id % 2 = 0;
ALTER TABLE t REPLICA IDENTITY NOTHING;
CLUSTER t USING t_u_key;
CREATE TABLE child (t int REFERENCES t, n int);
INSERT INTO child SELECT g, g FROM generate_series(1, 500) g;
CREATE TABLE ident (id int PRIMARY KEY, v int);
CREATE INDEX ident_v ON ident (v);
INSERT INTO ident SELECT g, g FROM generate_series(1, 500) g;
CREATE TABLE part (i int, j int) PARTITION BY RANGE (i);
CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM (0) TO (100);
CREATE TABLE part_2 PARTITION OF part FOR VALUES FROM (100) TO (200);
CREATE UNIQUE INDEX part_i ON part (i);
CREATE INDEX part_j ON part (j);
INSERT INTO part SELECT g, g FROM generate_series(0, 199) g;
CREATE UNLOGGED TABLE unlogged (i int PRIMARY KEY);
SELECT oracle.remember_keys(c::regclass) FROM unnest('{t,ident,part_1,part_2}'::text[]) c;
SQL
my @tables = qw(t ident part part_1 part_2 unlogged child);
my $oid = value("SELECT oid FROM pg_tablespace WHERE spcname = 'fast'");
my $link = $node->data_dir . "/pg_tblspc/$oid";

sub to_fast
{
	my (@what) = @_;
	value("SELECT move_indexes('$_', 'fast')") foreach @what ? @what : qw(t ident part unlogged);
	# exclusion constraints and all else are there, and on disk
	return value('CHECKPOINT');
}

sub write_some
{
	return value(<<'SQL');
UPDATE t SET v = v + 1, words = to_tsvector('simple', 'b' || v) WHERE id % 10 = 0;
INSERT INTO t SELECT g, g, g % 100, to_tsvector('simple', 'a' || g % 100), point(g, g), int4range(g * 2, g * 2 + 1)
  FROM (SELECT max(id) AS m FROM t) m, generate_series(m + 1, m + 300) g;
DELETE FROM t WHERE id % 17 = 3 AND id > 600;
UPDATE part SET j = j + 1 WHERE i % 3 = 0;
INSERT INTO ident SELECT max(id) + 1, 7 FROM ident;
SQL
}

# The device comes back empty.
my %empty = (
	'emptied' => sub { rmtree($location); make_path($location); },
	'version directory' => sub { rmtree($location); make_path($location); mkdir "$location/" . version_directory(), 0700; },
	'database directory missing' => sub { rmtree(glob("$location/PG_*/*")); });
sub value { return $node->safe_psql('postgres', $_[0]); }

my $timed;    # the rebuild of t_half was foretold
my $version;
sub version_directory { return $version //= (map { m{([^/]+)$} } glob("$location/PG_*"))[0]; }
version_directory();

sub answers
{
	my ($name, @which) = @_;
	verdict_ok($node, $_, $name, max_keys => 200) foreach @which ? @which : qw(t ident part_1 part_2);
	is(value("SELECT coalesce(string_agg(indexrelid::regclass::text, ' '), '') FROM pg_index
	WHERE NOT (indisvalid AND indisready AND indislive)"),
		'', "$name: no invalid index");
	return;
}

sub heal_rows { return value("SELECT status, method, count(*) FROM heal_tablespace('fast'" . ($_[0] // '') . ') GROUP BY 1, 2
	ORDER BY 1, 2'); }

to_fast();
# the last rebuild of an index tells how long the next one takes: 100 s, when it was half as large
my $half = value("SELECT pg_relation_size('t_half') / 2");
value("INSERT INTO index_mover.job_log SELECT (jsonb_populate_record(j, '{\"job\": 9000}')).* FROM index_mover.job_log j LIMIT 1");
value(<<SQL);
INSERT INTO index_mover.move_log SELECT (jsonb_populate_record(m, '{"job": 9000, "method": "rebuild", "idle": 0, "size_before": $half}'
		|| jsonb_build_object('started_at', now() - interval '100 s', 'finished_at', now()))).*
  FROM index_mover.move_log m WHERE relation_name = 't_half' LIMIT 1
SQL
is(value("SELECT count(*) FROM heal_tablespace('fast', dry_run => true)"), '0', 'nothing is lost');
my $lost = value("SELECT count(*) FROM pg_class WHERE reltablespace = $oid AND relkind = 'i'");

# ---- every way to lose it ------------------------------------------------------------------------
my @cases = map { my $end = $_; map { [ $end, $_ ] } sort keys %empty } 'clean shutdown', 'crash', 'crash in mid-write';
foreach my $case (picked { $_->[1] eq 'emptied' } 'losses', @cases)
{
	my ($end, $what) = @$case;
	my $name = "$end, $what";
	value('CHECKPOINT');
	value('INSERT INTO unlogged SELECT max(i) + 1 FROM (SELECT i FROM unlogged UNION ALL SELECT 0) u');
	write_some() if $end =~ /mid-write/;
	my $right = value('SELECT count(*) FROM ident WHERE id = 5');
	$node->stop($end eq 'clean shutdown' ? 'fast' : 'immediate');
	$empty{$what}->();
	$node->start;
	# the planner does without the index where the loss is known before; never a wrong answer
	my ($rc, $out) = $node->psql('postgres', 'SET enable_seqscan = off; SELECT count(*) FROM ident WHERE id = 5');
	ok($rc != 0 || $out eq $right, "$name: the index is not used");
	my $plan = value("SELECT name, status, detail FROM heal_tablespace('fast', dry_run => true)");
	# recovery may have the image of each page of a small index, which is whole then
	my $found = () = $plan =~ /\|planned\|Lost: /g;
	cmp_ok($found, '>=', $end =~ /mid-write/ ? $lost / 2 : $lost, "$name: the plan names all of them") or diag($plan);
	like($plan, qr/^t_pkey\|planned\|Lost: .* Needed by constraint child_t_fkey on table child\. /m, "$name: and what needs them")
		if $plan =~ /^t_pkey/m;
	note $plan if $case == $cases[0];
	is(value("SELECT round(extract(epoch FROM elapsed) / 20) FROM heal_tablespace('fast', dry_run => true) WHERE name = 't_half'"), '10',
		"$name: how long the rebuild will take") if $plan =~ /^t_half\|planned/m && !$timed++;
	is(heal_rows(), "moved|rebuild|$found", "$name: healed");
	answers($name);
	is(value("SELECT count(*) FROM heal_tablespace('fast')"), '0', "$name: nothing more is lost");
	is(value("SELECT count(*) FROM pg_class WHERE reltablespace = $oid AND relkind = 'i'"), $lost, "$name: where they were");
	write_some();
	value("SELECT oracle.remember_keys('t')");
	answers("$name, after writes");
	leftovers_ok($node, $name);
}
is(value("SELECT indisclustered FROM pg_index WHERE indexrelid = 't_u_key'::regclass"), 't', 'CLUSTER keeps its index');

# ---- what works until it is well -----------------------------------------------------------------
$node->stop;
$empty{emptied}->();
$node->start;
my $holder = $node->background_psql('postgres', on_error_stop => 0);
$holder->query_safe('BEGIN; LOCK TABLE t, ident, part, unlogged, child IN ROW EXCLUSIVE MODE');
my $job = value("SELECT max(job) FROM heal_tablespace('fast', wait => false)");
$node->poll_query_until('postgres', "SELECT count(*) = $lost - 1 FROM pg_index WHERE NOT indisvalid") or die 'not hidden';
is(value("SELECT string_agg(indexrelid::regclass::text, ' ' ORDER BY 1) FROM pg_index JOIN pg_class c ON c.oid = indexrelid
	WHERE reltablespace = $oid AND indisvalid AND relkind = 'i'"),
	'ident_pkey', 'the replica identity stays in use');
is(value("SELECT string_agg(indexrelid::regclass::text, ' ' ORDER BY indexrelid::regclass::text) FROM pg_index
	WHERE indisready AND NOT indisvalid"),
	'part_1_i_idx part_2_i_idx t_half t_pkey t_r_excl t_u_key unlogged_pkey', 'what enforces something stays ready');
is(value('SET enable_seqscan = off; SELECT count(*) FROM t WHERE id = 5 OR v = 5 AND words @@ $$a5$$'), value('SELECT sum(1) FROM t
	WHERE id = 5 OR v = 5 AND words::text = $$\'a5\':1$$'),
	'reads work');
is($node->psql('postgres', 'UPDATE t SET p = p WHERE id = 7; DELETE FROM child WHERE t = 7; DELETE FROM t
	WHERE id = 7'), 0, 'so do HOT updates, and deletes');
my ($rc, $out, $err) = $node->psql('postgres', 'INSERT INTO child VALUES (8, 8)');
# from 19 on core reads the index of a foreign key itself (ri_FastPathCheck)
$node->pg_version >= '19devel' ? like($err, qr/could not open file/, 'but no foreign keys') : is($rc, 0, 'and foreign keys');
($rc, $out, $err) = $node->psql('postgres', "\\set VERBOSITY sqlstate\nINSERT INTO t SELECT id, u, v, words, p, r FROM t
	WHERE id = 8");
like($err, qr/58P01/, 'no duplicate gets in');
($rc, $out, $err) = $node->psql('postgres',
	"\\set VERBOSITY sqlstate\nINSERT INTO t SELECT * FROM t WHERE id = 8 ON CONFLICT (id) DO NOTHING");
like($err, qr/42P10/, 'ON CONFLICT says so');
my ($dump) = run_command([ 'pg_dump', '-s', '-t', 't', '-d', $node->connstr('postgres') ]);
like($dump, qr/CREATE TABLE public\.t /, 'pg_dump works');
unlike($dump, qr/t_pkey|t_v/, 'but leaves out what is hidden');
# canceled before anything is rebuilt, and resumed: also what REINDEX CONCURRENTLY cannot rebuild, and what is not hidden
value("SELECT cancel_move($job)");
wait_for_no_worker($node);
$holder->query_safe('COMMIT');
my $rest = value("SELECT resume_move($job)");
value("CALL wait_for_move($rest)");
is(value("SELECT status, count(*) FROM index_mover_history WHERE job = $rest GROUP BY 1"), "moved|$lost",
	'the rest of the healing is resumed');
answers('after the holder', qw(ident part_1 part_2));
value("SELECT oracle.remember_keys('t')");
answers('after the holder');
$holder->quit;

# ---- hidden, and not rebuilt ----------------------------------------------------------------------
my $file;
foreach my $end (picked { /file/ } 'ends while indexes are hidden', 'file comes back', 'crash', 'extension dropped')
{
	my %file = map { $_ => $node->data_dir . '/' . value("SELECT pg_relation_filepath('$_')") } qw(t_u_key t_v t_r_excl);
	value('CHECKPOINT');
	$node->stop;
	rename $_, "$_.away" foreach values %file;
	$node->start;
	$holder = $node->background_psql('postgres', on_error_stop => 0);
	$holder->query_safe('BEGIN; LOCK TABLE t IN ROW EXCLUSIVE MODE');
	$job = value("SELECT max(job) FROM heal_tablespace('fast', wait => false)");
	$node->poll_query_until('postgres', 'SELECT count(*) = 3 FROM pg_index WHERE NOT indisvalid') or die 'not hidden';
	if ($end ne 'crash')
	{
		value("SELECT cancel_move($job)");
		wait_for_no_worker($node);
	}
	$node->stop($end eq 'crash' ? 'immediate' : 'fast') if $end ne 'extension dropped';
	eval { $holder->quit };
	rename "$_.away", $_ foreach $end =~ /file/ ? values %file : ();
	$node->start if $end ne 'extension dropped';
	is(value('SET enable_seqscan = off; SELECT count(*) FROM t WHERE v = 5'), value('SELECT count(*) FROM t WHERE v + 0 = 5'),
		"$end: reads still work");
	if ($end eq 'extension dropped')
	{
		value('DROP EXTENSION index_mover');
		value('REINDEX INDEX ' . ($_ =~ /excl/ ? '' : 'CONCURRENTLY ') . $_) foreach sort keys %file;
		value('CREATE EXTENSION index_mover');
	}
	else
	{
		write_some() if $end =~ /file/;
		my $why = $end eq 'crash' ? 'its file is missing.' : 'it is not valid.';
		is(value("SELECT string_agg(name || ' ' || left(detail, 6 + length('$why')), ',' ORDER BY name) FROM heal_tablespace('fast', "
				. 'dry_run => true)'),
			"t_r_excl Lost: $why,t_u_key Lost: $why,t_v Lost: $why", "$end: found");
		is(heal_rows(), 'moved|rebuild|3', "$end: rebuilt");
	}
	unlink map { "$_.away" } values %file;
	value("SELECT oracle.remember_keys('t')");
	answers($end, 't');
}

# ---- one file of many, elsewhere, a second loss in the middle, duplicates ------------------------
# a hash index makes pages for its buckets ahead, which are zeros until then
value("CREATE TABLE grown (i int); CREATE INDEX grown_i ON grown USING hash (i) TABLESPACE fast;
	INSERT INTO grown SELECT generate_series(1, 5000); CHECKPOINT; SELECT oracle.remember_keys('grown')");
like(slurp_file($node->data_dir . '/' . value("SELECT pg_relation_filepath('grown_i')")), qr/\0{8192}/, 'a hash index with empty pages');
$file = $node->data_dir . '/' . value("SELECT pg_relation_filepath('t_words')");
$node->stop;
unlink $file or die $!;
$node->start;
my $canceler = $node->background_psql('postgres', on_error_stop => 0);
$job = $canceler->query_safe("BEGIN; SELECT max(job) FROM heal_tablespace('fast', wait => false)");
value("SELECT cancel_move($job)");
$canceler->query_safe('COMMIT');
$canceler->quit;
wait_for_no_worker($node);
is(value("SELECT status, sqlstate FROM index_mover_history WHERE job = $job"), 'canceled|57014', 'canceled before it hides anything');
($rc, $out, $err) = $node->psql('postgres', "SELECT name, status FROM heal_tablespace('fast', dry_run => true)");
like($err, qr/NOTICE:  the plan is to rebuild 1 index: /, 'a plan to rebuild');
($rc, $out, $err) = $node->psql('postgres', "SELECT name, status FROM heal_tablespace('fast')");
is($out, 't_words|moved', 'one file of many');
like($err, qr/NOTICE:  job \d+: 1 index, [^,]+, to rebuild in tablespace "fast"\n.*NOTICE:  job \d+: 1 of 1 index rebuilt in "fast", /,
	'which is rebuilt where it is');
answers('one file');

value('DROP TABLE grown');

# an index in the making, which has a file, is not lost; nor is a directory made for those who may heal nothing
$holder = $node->background_psql('postgres', on_error_stop => 0);
$holder->query_safe('BEGIN; LOCK TABLE t IN ROW EXCLUSIVE MODE');
my $builder = $node->background_psql('postgres', on_error_stop => 0);
$builder->query_until(qr/begins/, "\\echo begins\nCREATE INDEX CONCURRENTLY t_new ON t (u, v) TABLESPACE fast;\n");
$node->poll_query_until('postgres', "SELECT count(*) = 1 FROM pg_index WHERE indexrelid = to_regclass('t_new')") or die 'no index';
is(value("SELECT name, status, sqlstate, left(detail, 17) FROM heal_tablespace('fast')"), 't_new|skipped|55006|It is not valid: ',
	'CREATE INDEX CONCURRENTLY is at work');
$holder->query_safe('COMMIT');
$builder->query_safe('SELECT 1');
$_->quit foreach $holder, $builder;
answers('in the making', 't');
value('DROP INDEX t_new; CHECKPOINT; CREATE ROLE regress_other; GRANT EXECUTE ON FUNCTION heal_tablespace TO regress_other');
$node->stop;
$empty{emptied}->();
$node->start;
is(value("SET ROLE regress_other; SELECT DISTINCT status, sqlstate FROM heal_tablespace('fast')"), 'skipped|42501', "others' indexes");
is(join(' ', glob "$location/*"), '', 'no directory is made for that');
is(value("SELECT DISTINCT status FROM heal_tablespace('fast')"), 'moved', 'a superuser heals');
value('REVOKE ALL ON FUNCTION heal_tablespace FROM regress_other; DROP ROLE regress_other');
answers('for others');

# an index's function that says what a rebuild says that gives way: it is no session that has to pass
value(<<'SQL');
CREATE SEQUENCE builds;
CREATE TABLE raises (i int);
INSERT INTO raises VALUES (1);
CREATE FUNCTION in_the_way(i int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
	IF EXISTS (SELECT FROM pg_catalog.pg_stat_activity WHERE pid = pg_catalog.pg_backend_pid() AND backend_type = 'index_mover') THEN
		PERFORM pg_catalog.nextval('public.builds');
		RAISE 'in the way' USING ERRCODE = '55006';
	END IF;
	RETURN i;
END $$;
CREATE INDEX raises_i ON raises (in_the_way(i)) TABLESPACE fast;
CHECKPOINT;
SQL
$file = $node->data_dir . '/' . value("SELECT pg_relation_filepath('raises_i')");
$node->stop;
unlink $file or die $!;
$node->start;
is(value("SELECT name, status, sqlstate FROM heal_tablespace('fast', settings => '{\"lock_wait\": \"5s\"}')"), 'raises_i|failed|55006',
	'an error of its function');
is(value('SELECT last_value FROM builds'), '1', 'an index whose function fails is not rebuilt again');
value('DROP TABLE raises; DROP FUNCTION in_the_way; DROP SEQUENCE builds');

# the first page of an access method that we do not know
value('CREATE EXTENSION bloom; CREATE INDEX t_bloom ON t USING bloom (id, v) TABLESPACE fast; CHECKPOINT');
$file = $node->data_dir . '/' . value("SELECT pg_relation_filepath('t_bloom')");
is(value("SELECT count(*) FROM heal_tablespace('fast', dry_run => true)"), '0', 'an access method of an extension: nothing is lost');
$node->stop;
open my $ruin, '+<', $file or die $!;
print $ruin "\0" x 8192;
close $ruin;
$node->start;
is(value("SELECT name, status FROM heal_tablespace('fast')"), 't_bloom|moved', 'its ruin is rebuilt');
value('DROP EXTENSION bloom CASCADE');

# a segment after one that is missing, of which md.c knows nothing
$file = $node->data_dir . '/' . value("SELECT pg_relation_filepath('t_v')");
append_to_file("$file.3", 'x' x 8192);
is(value("SELECT status, sqlstate, detail FROM move_indexes('t_v', 'regress_slow', 'copy')"),
	'skipped|XX002|Method copy cannot move it: segment 0 of its file is missing or too short. Method rebuild can.',
	'segments are missing: not copied');
is(value("SELECT name, status FROM heal_tablespace('fast')"), 't_v|moved', 'but rebuilt');
unlink "$file.3";
answers('segments');

# a file, or a directory, that the server may not open: core would PANIC when it drops the file after a rebuild
value('CREATE TABLE closed_t (i int) TABLESPACE fast; CREATE INDEX t_v_closed ON t (v) TABLESPACE fast');
my $locked = 'skipped|58030|The server cannot open its file: Permission denied.';
my %closed = map { $_ => $node->data_dir . '/' . value("SELECT pg_relation_filepath('$_')") } qw(closed_t t_v_closed t_words);
$node->stop;
unlink $closed{t_words} or die $!;
chmod 0, @closed{qw(closed_t t_v_closed)};
$node->start;
is(value("SELECT name, status, sqlstate, detail FROM heal_tablespace('fast') ORDER BY 1"),
	"closed_t|$locked\nt_v_closed|$locked\nt_words|moved||", 'files that cannot be opened stop no other');
is(value("SELECT status, sqlstate, detail FROM move_indexes('t_v_closed', 'regress_slow', 'rebuild')"), $locked, 'nor are they moved');
is(value("SELECT object, detail ~ 'Permission denied' FROM index_mover_check() ORDER BY 1"), "public.closed_t|t\npublic.t_v_closed|t",
	'index_mover_check() says why');
chmod 0600, @closed{qw(closed_t t_v_closed)};
my $files = dirname($closed{t_words});
$node->stop;
chmod 0, $files;
$node->start;
is(value("SELECT DISTINCT status, sqlstate, detail FROM heal_tablespace('fast')"), $locked, 'nor a directory');
is(value('SELECT count(*) FROM pg_index WHERE NOT indisvalid'), 0, 'whose indexes are not hidden');
chmod 0700, $files;
value('DROP TABLE closed_t; DROP INDEX t_v_closed');
is(value("SELECT count(*) FROM heal_tablespace('fast')"), 0, 'nothing was lost');
answers('closed');

# an exclusion constraint, whose REINDEX asks for its locks again and again, each time for a moment
$file = $node->data_dir . '/' . value("SELECT pg_relation_filepath('t_r_excl')");
value('CHECKPOINT');
$node->stop;
unlink $file or die $!;
$node->start;
$holder = $node->background_psql('postgres', on_error_stop => 0);
$holder->query_safe('BEGIN; LOCK TABLE t IN ROW EXCLUSIVE MODE');
$job = value("SELECT max(job) FROM heal_tablespace('fast', wait => false)");
my $asks = "SELECT count(*) = 1 FROM pg_locks WHERE relation = 't'::regclass AND mode = 'ShareLock' AND NOT granted";
foreach my $attempt (1, 2)
{
	$node->poll_query_until('postgres', $asks) or die 'no attempt';
	$node->poll_query_until('postgres', $asks, 'f') or die 'no end of an attempt';
	next if $attempt == 2;
	# the next attempt would have its locks
	value("SELECT cancel_move($job)");
	$holder->query_safe('COMMIT');
	wait_for_no_worker($node);
	is(value("SELECT status FROM index_mover_history WHERE job = $job"), 'canceled', 'canceled between two attempts');
	$holder->query_safe('BEGIN; LOCK TABLE t IN ROW EXCLUSIVE MODE');
	$job = value("SELECT max(job) FROM heal_tablespace('fast', wait => false)");
}
is($node->psql('postgres', 'SET statement_timeout = 5000; DELETE FROM t WHERE id = 1009'), 0,
	'others pass between its attempts at the locks');
# a pause is obeyed in the queue, however long that may last
value("SELECT alter_move($job, 'lock_timeout', '10min')");
foreach my $asking ('t', 'f', 't')
{
	$node->poll_query_until('postgres', $asks, $asking) or die 'no further attempt';
}
value("SELECT pause_move($job)");
$node->poll_query_until('postgres', "SELECT throttled_by FROM index_mover_progress WHERE job = $job", 'pause_move()') or die 'no pause';
is(value($asks), 'f', 'paused: it leaves the queue');
$holder->query_safe('COMMIT');
$holder->quit;
is(value("SELECT status FROM index_mover_history WHERE job = $job"), 'paused', 'and asks no more when the lock is free');
value("SELECT resume_move($job)");
value("CALL wait_for_move($job)");
is(value("SELECT relation_name, status FROM index_mover.move_log WHERE job = $job"), 't_r_excl|moved', 'and it is rebuilt');
answers('exclusion constraint', 't');

# a client that analyzes the table again and again, while the index takes a second to build: core's REINDEX waits for its
# snapshot, and it for REINDEX's lock
value(<<'SQL');
CREATE FUNCTION slow(i int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN PERFORM pg_sleep(0.001); RETURN i; END $$;
CREATE TABLE slow (i int);
INSERT INTO slow SELECT generate_series(1, 600);
CREATE INDEX slow_i ON slow (slow(i)) TABLESPACE fast;
CHECKPOINT;
SQL
$file = $node->data_dir . '/' . value("SELECT pg_relation_filepath('slow_i')");
$node->stop;
unlink $file or die $!;
$node->start;
my $analyze = PostgreSQL::Test::Utils::tempdir() . '/analyze.sql';
append_to_file($analyze, "ANALYZE slow (i);\n" x 100_000);
my $client = IPC::Run::start([ 'psql', '-X', '-q', '-d', $node->connstr('postgres'), '-f', $analyze ], '>&', '/dev/null');
is(value("SELECT name, status FROM heal_tablespace('fast')"), 'slow_i|moved', 'healed beside a client that analyzes its table');
$client->kill_kill;
value('DROP TABLE slow; DROP FUNCTION slow');

# a rebuild that gives way is tried again when what it has made is removed, for which it waits as long as that session
# has the table: a cancel ends that
make_gate($node, 'gate', 42);
value('CREATE TABLE gated (i int); INSERT INTO gated SELECT generate_series(1, 10); '
	. 'CREATE INDEX gated_i ON gated (gate(i)) TABLESPACE fast; CHECKPOINT');
$file = $node->data_dir . '/' . value("SELECT pg_relation_filepath('gated_i')");
$node->stop;
unlink $file or die $!;
$node->start;
my ($gate, $other) = map { IndexMover::Session->new($node) } 1 .. 2;
$gate->run('SELECT pg_advisory_lock(42)');
$job = value("SELECT max(job) FROM heal_tablespace('fast', wait => false)");
$node->poll_query_until('postgres', "SELECT count(*) = 1 FROM index_mover_progress WHERE phase = 'building index'") or die 'no build';
$other->run('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1');
$other->send('LOCK TABLE gated IN SHARE UPDATE EXCLUSIVE MODE');
$node->poll_query_until('postgres', 'SELECT count(*) = 1 FROM pg_locks WHERE NOT granted AND pid = ' . $other->pid) or die 'no lock';
$gate->run('SELECT pg_advisory_unlock(42)');
$other->answer;
is($other->errors, '', 'the rebuild gives way to a session that it waits for');
$node->poll_query_until('postgres', "SELECT count(*) = 1 FROM index_mover_progress WHERE phase = 'cleaning up' AND blocked_by = "
	. 'ARRAY[' . $other->pid . ']') or die 'no cleanup';
value("SELECT cancel_move($job)");
$node->poll_query_until('postgres', "SELECT status = 'canceled' FROM index_mover_history WHERE job = $job") or die 'not canceled';
pass('a cancel ends it, while that session has the table');
$other->run('COMMIT');
$_->end for $gate, $other;
wait_for_no_worker($node);
is(value("SELECT name, status FROM heal_tablespace('fast')"), 'gated_i|moved', 'canceled between two tries: healed by another call');
value('DROP TABLE gated; DROP FUNCTION gate');

value('CHECKPOINT');
$node->stop;
$empty{emptied}->();
$node->start;
$holder = $node->background_psql('postgres', on_error_stop => 0);
$holder->query_safe('BEGIN; LOCK TABLE part_2 IN ROW EXCLUSIVE MODE');
$job = value("SELECT max(job) FROM heal_tablespace('fast', wait => false)");
$node->poll_query_until('postgres', "SELECT count(*) >= 9 FROM index_mover_history WHERE job = $job AND status = 'moved'")
	or die 'nothing healed';
value('CHECKPOINT');
$node->stop('immediate');
eval { $holder->quit };
$empty{emptied}->();
$node->start;
$node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM index_mover_progress');
is(value("SELECT string_agg(DISTINCT status, ' ') FROM heal_tablespace('fast', 'regress_slow')"), 'moved',
	'lost again in the middle: healed elsewhere');
is(value("SELECT count(*) FROM pg_class WHERE relkind = 'I' AND reltablespace = $oid"), '0', 'as the indexes of new partitions are made');
wait_for_no_worker($node);
answers('lost twice');
# what was rebuilt after the checkpoint is in the WAL as a whole, and so was not lost
value("SELECT move_tablespace_indexes('fast', 'regress_slow')");
# as after a cancel between the last rebuild and the defaults
value('ALTER INDEX part_i SET TABLESPACE fast');
is(value("SELECT name, kind, status FROM heal_tablespace('fast', 'regress_slow')"), 'part_i|default|moved',
	'another call makes up for a default');
# ---- lost while the server runs: memory has pages that no checkpoint can write -------------------
mkdir "$location/" . version_directory(), 0700;
to_fast('t_v', 't_words');
write_some();
rmtree(glob("$location/PG_*/*"));
cmp_ok($node->psql('postgres', 'CHECKPOINT'), '!=', 0, 'lost in use: a checkpoint fails');
is(value("SELECT string_agg(name || ' ' || status, ', ' ORDER BY name) FROM heal_tablespace('fast', 'regress_slow')"),
	't_v moved, t_words moved', 'lost in use: healed');
is($node->psql('postgres', 'CHECKPOINT'), 0, 'lost in use: then none does');
answers('lost in use');
is($node->psql('postgres', 'DROP TABLESPACE fast'), 0, 'the tablespace can be dropped');
files_ok($node, 'in the end');
leftovers_ok($node, 'in the end');
no_finding_ok($node);
$node->stop;
done_testing();
