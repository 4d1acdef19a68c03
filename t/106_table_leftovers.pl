# What others have left behind is no dead end, and not passed over in silence: an index of a
# TOAST table that a canceled REINDEX CONCURRENTLY leaves, empty or not, moves with its table, and the
# plan says the same as the run; a partition that is being detached, and a temporary table of a
# session that is gone, have rows that say what is true; a call in a cursor is told so.
#
# Fault (tables): what a canceled REINDEX CONCURRENTLY leaves of a TOAST table, a partition whose detachment was
#   interrupted, temporary tables of a session that was killed
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Session;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('leftovers');
my $sql = sub { return $node->safe_psql('postgres', @_); };

# Cancel a command while it waits for a transaction that has done this; $then: what it waits for must be this far.
sub cancel_behind
{
	my ($holds, $command, $far) = @_;
	my $holder = IndexMover::Session->new($node);
	$holder->run("BEGIN ISOLATION LEVEL REPEATABLE READ; $holds");
	my $session = IndexMover::Session->new($node);
	$session->send($command);
	poll_until($node, $far, 't', "$command: so far");
	$sql->('SELECT pg_cancel_backend(' . $session->pid . ')');
	$session->answer;
	like($session->errors, qr/57014/, "$command is canceled");
	$_->end foreach $holder, $session;
	return;
}

# ---------------------------------------------------------------------------
# An index of a TOAST table that is not valid
# ---------------------------------------------------------------------------
my $invalid = q{SELECT coalesce(string_agg(i.indexrelid::regclass || ' ' || (pg_relation_size(i.indexrelid) > 0), ','), '')
	FROM pg_index i JOIN pg_class c ON c.reltoastrelid = i.indrelid WHERE c.relname = '%s' AND NOT i.indisvalid};
my $waits = q{SELECT count(*) > 0 FROM pg_stat_progress_create_index WHERE phase = '%s'};
# (the second after the build of all)
foreach my $case (
	[ 'empty', 'INSERT INTO %s VALUES (0, NULL)', 'REINDEX TABLE CONCURRENTLY %s', 'waiting for writers before build', 'false' ],
	[ 'built', 'SELECT count(*) FROM pg_class', 'REINDEX TABLE CONCURRENTLY %s', 'waiting for old snapshots', 'true' ])
{
	my ($name, $holds, $command, $phase, $has_pages) = @$case;
	$sql->(<<SQL);
CREATE TABLE $name (i int, t text);
ALTER TABLE $name ALTER t SET STORAGE external;
INSERT INTO $name SELECT g, repeat('x', 5000) FROM generate_series(1, 100) g;
SQL
	cancel_behind(sprintf($holds, $name), sprintf($command, $name), sprintf($waits, $phase));
	my ($index, $pages) = split / /, $sql->(sprintf $invalid, $name);
	like($index, qr/^pg_toast\.pg_toast_\d+_index_ccnew$/, "$name: an index of the TOAST table is left");
	is($pages, $has_pages, "$name: with pages or not");
	my $drop = "DROP INDEX CONCURRENTLY $index;";
	my $plan = $sql->("SELECT kind, status, detail FROM move_table('$name', 'regress_fast', dry_run => true)");
	like($plan, qr/^table\|planned\|/m, "$name: the table is planned");
	like($plan, qr/^toast index\|planned\|The index is not valid: an interrupted REINDEX CONCURRENTLY [^|]* as a superuser: \Q$drop\E /m,
		"$name: the plan says what the index is, and how to drop it");
	my ($rc, $rows, $notices) = $node->psql('postgres', "SELECT DISTINCT status, sqlstate FROM move_table('$name', 'regress_fast')");
	is($rows, 'moved|', "$name: the run does as the plan has said");
	my ($short) = $index =~ /([^.]*)$/;
	like($notices, joined(qr/NOTICE:  index "$short" of the TOAST table of "$name" is not valid, and moves with it\n/,
			qr/[^\n]*DETAIL:  An interrupted REINDEX CONCURRENTLY [^\n]*\n[^\n]*HINT:  [^\n]*\Q$drop\E/), "$name: and it is said");
	is($sql->("SELECT DISTINCT spcname FROM pg_class c JOIN pg_tablespace t ON t.oid = c.reltablespace "
			. "WHERE c.relname = '$name' OR c.relname LIKE 'pg_toast_' || '$name'::regclass::oid || '%'"),
		'regress_fast', "$name: all are there");
	is($sql->("INSERT INTO $name VALUES (0, repeat('y', 5000)); SELECT count(*), sum(length(t)) FROM $name"),
		'101|505000', "$name: it works");
	is($sql->("SELECT DISTINCT status FROM evacuate_tablespace('regress_fast', 'regress_slow')"), 'moved', "$name: and leaves it again");
	is($sql->("SELECT DISTINCT status FROM move_table('$name', 'pg_default')"), 'moved', "$name: for the default tablespace, too");
	$sql->($drop);
	is($sql->(sprintf $invalid, $name), '', "$name: the command works");
	($rc, $rows, $notices) = $node->psql('postgres', "SELECT DISTINCT status FROM move_table('$name', 'regress_slow')");
	unlike($notices, qr/not valid/, "$name: and then nothing is said");
}

# A part that is really lost is named, by the plan and by the run.
my $toast = $sql->("SELECT reltoastrelid::regclass FROM pg_class WHERE relname = 'built'");
my ($name) = $toast =~ /([^.]*)$/;
my $path = $node->data_dir . '/' . $sql->("SELECT pg_relation_filepath(indexrelid) FROM pg_index WHERE indrelid = '$toast'::regclass");
$sql->('CHECKPOINT');
truncate $path, 0 or die "$path: $!";
foreach my $dry_run ('true', 'false')
{
	is($sql->("SELECT DISTINCT status, sqlstate, detail FROM move_table('built', 'regress_fast', dry_run => $dry_run)"),
		qq(skipped|XX002|The index "${name}_index" cannot be copied: its file is empty.),
		"dry_run => $dry_run: a lost index of TOAST is named");
}
$sql->("REINDEX TABLE built; DROP TABLE built, empty");

# ---------------------------------------------------------------------------
# A partition that is being detached
# ---------------------------------------------------------------------------
$sql->(<<'SQL');
CREATE TABLE parent (i int) PARTITION BY RANGE (i);
CREATE TABLE leaves PARTITION OF parent FOR VALUES FROM (0) TO (10) PARTITION BY RANGE (i);
CREATE TABLE below PARTITION OF leaves FOR VALUES FROM (0) TO (10);
CREATE TABLE stays PARTITION OF parent FOR VALUES FROM (10) TO (20);
CREATE INDEX ON parent (i);
SQL
cancel_behind('SELECT count(*) FROM parent', 'ALTER TABLE parent DETACH PARTITION leaves CONCURRENTLY',
	'SELECT count(*) > 0 FROM pg_inherits WHERE inhdetachpending');
my $finalize = 'ALTER TABLE public.parent DETACH PARTITION public.leaves FINALIZE;';
is($sql->("SELECT name, status, sqlstate, substring(detail FROM 'ALTER .*') FROM move_table('parent', 'regress_fast', indexes => true) "
		. 'ORDER BY name COLLATE "C"'), <<"ROWS" =~ s/\n\z//r, 'each relation of a partition that is being detached has a row');
below|skipped|55000|$finalize
below_i_idx|skipped|55000|$finalize
leaves|skipped|55000|$finalize
leaves_i_idx|skipped|55000|$finalize
parent|moved||
parent_i_idx|moved||
stays|moved||
stays_i_idx|moved||
ROWS
is($sql->("SELECT name FROM move_indexes('parent', 'regress_slow') WHERE status = 'skipped' ORDER BY name COLLATE \"C\""),
	"below_i_idx\nleaves_i_idx", 'of move_indexes() its indexes');
$sql->($finalize);
is($sql->("SELECT name, status FROM move_table('leaves', 'regress_fast') ORDER BY name"), "below|moved\nleaves|moved",
	'the command works, and then the table moves by its own name');

# ---------------------------------------------------------------------------
# Temporary tables of a session that is gone
# ---------------------------------------------------------------------------
my $temporary = q{SELECT kind, detail FROM evacuate_tablespace('regress_slow', 'regress_fast', dry_run => true)
	WHERE detail LIKE 'It is temporary%' ORDER BY kind COLLATE "C"};
my $owner = IndexMover::Session->new($node);
$owner->run('SET temp_tablespaces = regress_slow; '
	. 'CREATE TEMP TABLE passes (i int PRIMARY KEY USING INDEX TABLESPACE regress_slow, t text)');
is($sql->($temporary) =~ s/^[^|]*\|//mgr, join("\n", ('It is temporary, and goes with its session.') x 4), 'temporary tables of a session');
my $schema = $owner->run('SELECT nspname FROM pg_namespace WHERE oid = pg_my_temp_schema()');
kill 'KILL', $owner->pid;
wait_until_up($node);
my $rows = $sql->($temporary);
my $drop = "DROP TABLE $schema.passes;";
is($rows =~ s/^[^|]*\|//mgr,
	join("\n", ("It is temporary, of a session that has ended without dropping it. Autovacuum drops it, or a superuser: $drop") x 4),
	'of one that was killed') or diag $rows;
$sql->($drop);
is($sql->($temporary), '', 'the command works');

# ---------------------------------------------------------------------------
# In a cursor
# ---------------------------------------------------------------------------
foreach my $call ("SELECT * FROM move_table('leaves', 'regress_fast')", 'SELECT * FROM index_mover_cleanup()')
{
	my $hint = $call =~ /cleanup/ ? '' : ', or with wait => false';
	my (undef, undef, $err) = $node->psql('postgres', "BEGIN; DECLARE c CURSOR FOR $call; FETCH 1 FROM c");
	like($err, joined(qr/ERROR:  \w+\(\)(?: with wait => true)? cannot run inside a transaction block\n/,
			qr/[^\n]*DETAIL:  It is called in a cursor[^\n]*FETCH_COUNT[^\n]*\n[^\n]*HINT:  [^\n]*\\unset FETCH_COUNT\Q$hint\E\./),
		"$call in a cursor");
	(undef, undef, $err) = $node->psql('postgres', "BEGIN; $call");
	unlike($err, qr/cursor/, "$call without one");
	like($err, qr/HINT:  Call it on its own, with autocommit on\Q$hint\E\./, "$call: the usual hint");
	(undef, undef, $err) = $node->psql('postgres', "BEGIN; DO \$\$ DECLARE r record; BEGIN FOR r IN $call LOOP END LOOP; END \$\$");
	unlike($err, qr/FETCH_COUNT/, "$call in a loop of PL/pgSQL");
}
SKIP:
{
	my ($told) = run_command([ 'psql', '--version' ]);
	my ($version) = $told =~ /(\d+)/;
	skip "psql $version uses no cursor for FETCH_COUNT", 1 if $version >= 17;
	my (undef, undef, $err) = $node->psql('postgres', "SELECT * FROM move_table('leaves', 'regress_slow')",
		extra_params => [ '-v', 'FETCH_COUNT=10' ]);
	like($err, qr/HINT:  [^\n]*\\unset FETCH_COUNT/, 'psql with FETCH_COUNT');
}
$node->stop;
done_testing();
