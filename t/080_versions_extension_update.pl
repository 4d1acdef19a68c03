# The way from one version of the extension to the next: for each version that
# has update scripts to the present one, a database that was updated has the
# same objects as one in which the extension was created again, and its history.
#
# So that this is tested before there is a second version, and the comparison
# with it, one is made up here, with two update scripts: one that is right and
# one that forgets a comment.  It needs an installation that we may write to.
# Before that, what the script of the present one must not do.
#
# Fault (security): the script of `CREATE EXTENSION`: for superusers only, takes over no object
#   that is there, makes nothing if psql runs it
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('update', extension => 0);
my $current = $node->safe_psql('postgres',
	"SELECT default_version FROM pg_available_extensions WHERE name = 'index_mover'");

# Every object of the extension in the present database with all that a script
# can say about it.
sub objects
{
	my ($db) = @_;
	return $node->safe_psql($db, <<'SQL');
SELECT pg_describe_object(d.classid, d.objid, 0)
       || ' | ' || coalesce(obj_description(d.objid, d.classid::regclass::name), 'no comment')
       || ' | ' || coalesce(
	CASE d.classid
	WHEN 'pg_proc'::regclass THEN
		(SELECT CASE WHEN p.prokind IN ('f', 'p') THEN pg_get_functiondef(p.oid) ELSE '' END || coalesce(p.proacl::text, '')
		   FROM pg_proc p WHERE p.oid = d.objid)
	WHEN 'pg_class'::regclass THEN
		(SELECT concat_ws(' ', c.relkind, c.relreplident, c.relacl::text, CASE WHEN c.relkind = 'v' THEN pg_get_viewdef(c.oid) END,
		        (SELECT string_agg(concat_ws(' ', a.attnum, a.attname, a.atttypid::regtype, a.attnotnull,
		                                     col_description(a.attrelid, a.attnum)), ', ' ORDER BY a.attnum)
		           FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
		        (SELECT string_agg(pg_get_indexdef(i.indexrelid), ', ' ORDER BY i.indexrelid::regclass::text)
		           FROM pg_index i WHERE i.indrelid = c.oid),
		        (SELECT string_agg(concat_ws(' ', pg_get_triggerdef(g.oid), g.tgenabled, obj_description(g.oid, 'pg_trigger')), ', '
		        	ORDER BY g.tgname)
		           FROM pg_trigger g WHERE g.tgrelid = c.oid),
		        (SELECT string_agg(pg_get_constraintdef(x.oid), ', ' ORDER BY x.conname)
		           FROM pg_constraint x WHERE x.conrelid = c.oid))
		   FROM pg_class c WHERE c.oid = d.objid)
	WHEN 'pg_type'::regclass THEN
		(SELECT string_agg(concat_ws(' ', a.attnum, a.attname, a.atttypid::regtype, col_description(a.attrelid, a.attnum)),
		                   ', ' ORDER BY a.attnum)
		   FROM pg_type t JOIN pg_attribute a ON a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
		  WHERE t.oid = d.objid)
	END, '')
  FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
 WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e' AND e.extname = 'index_mover'
 ORDER BY 1
SQL
}

# ---- the script, and what the control file says of it ---------------------------
# Only a superuser may run it; no object that was there before becomes the
# extension's; in psql it makes nothing, and says what to do.
chomp(my $dir = `pg_config --sharedir`);
$dir .= '/extension';
my $script = "$dir/index_mover--$current.sql";
is($node->safe_psql('postgres',
	"SELECT superuser, trusted, relocatable FROM pg_available_extension_versions WHERE name = 'index_mover' AND version = '$current'"),
	't|f|f', 'for superusers, not trusted, not relocatable');
unlike(slurp_file($script), qr/\bOR\s+REPLACE\b|\bIF\s+NOT\s+EXISTS\b/i, 'the script takes over no object of others');
my $all = 'SELECT (SELECT count(*) FROM pg_class), (SELECT count(*) FROM pg_proc), (SELECT count(*) FROM pg_type)';
my $before = $node->safe_psql('postgres', $all);
my ($said) = run_command([ 'psql', '-X', '-d', $node->connstr('postgres'), '-f', $script ]);
like($said, qr/^Use "CREATE EXTENSION index_mover" to load this file\.\s*$/, 'run by psql, it says what to do');
is($node->safe_psql('postgres', $all), $before, 'and makes nothing');

my $n = 0;

# A database with the extension as it was in $version, and a moved index.
sub old_database
{
	my ($version) = @_;
	my $db = 'update' . ++$n;
	$node->safe_psql('postgres', "CREATE DATABASE $db");
	$node->safe_psql($db, <<SQL);
CREATE EXTENSION index_mover VERSION '$version';
CREATE TABLE t (i int);
INSERT INTO t SELECT generate_series(1, 1000);
CREATE INDEX t_i ON t (i);
SQL
	$node->safe_psql($db, "SELECT move_indexes('t', 'regress_fast')");
	return $db;
}

# Update it, with a move of its own under way, to $version.
sub update
{
	my ($db, $version) = @_;
	my $job = $node->safe_psql($db,
		"BEGIN; SELECT job FROM move_indexes('t', 'regress_slow', 'copy', wait => false, settings => '{\"swap_after\": \"infinity\"}'); "
			. "COMMIT");
	wait_for_phase($node, 'waiting for time to swap', dbname => $db);
	# (a script that alters the extension's tables waits for the end of the job)
	my $call = start_call($node, "updating_$db", "ALTER EXTENSION index_mover UPDATE TO '$version'", dbname => $db);
	poll_until($node, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'updating_$db' AND wait_event_type = 'Lock')
	                OR EXISTS (SELECT FROM pg_extension WHERE extname = 'index_mover' AND extversion = '$version')",
		't', 'the update waits, or is done', dbname => $db);
	$node->safe_psql($db, "SELECT resume_move($job)");
	my ($status, undef, $err) = finish_call($call);
	is($status, 0, "$db: the update succeeds") or diag($err);
	is($node->safe_psql($db, "SELECT extversion FROM pg_extension WHERE extname = 'index_mover'"), $version,
		"$db: updated to $version");
	wait_for_no_worker($node, dbname => $db);
	is($node->safe_psql($db, "SELECT string_agg(to_tablespace || ' ' || status, ', ' ORDER BY job) FROM index_mover_history"),
		'regress_fast moved, regress_slow moved', "$db: the history is kept, and the move under way was not disturbed");
	is($node->safe_psql($db, "SELECT status FROM move_indexes('t', 'regress_fast')"), 'moved', "$db: and it moves");
	return;
}

# ---- the versions there are ----------------------------------------------------
$node->safe_psql('postgres', 'CREATE DATABASE fresh');
$node->safe_psql('fresh', 'CREATE EXTENSION index_mover CASCADE');
my $fresh = objects('fresh');
cmp_ok(scalar(() = $fresh =~ /^function /mg), '>', 10, 'the comparison sees the functions');
# What a user calls or reads has a comment, and so do its columns, and the two schemas
# of the rest, which has none.
my $comments = <<'SQL';
WITH members AS (
	SELECT d.classid, d.objid, coalesce(coalesce(p.pronamespace, c.relnamespace, t.typnamespace) IN
		('index_mover'::regnamespace, 'index_mover_call'::regnamespace), false) AS ours,
	       coalesce(tc.oid, c.oid) AS relation
	  FROM pg_depend d
	  JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'index_mover'
	  LEFT JOIN pg_proc p ON d.classid = 'pg_proc'::regclass AND p.oid = d.objid
	  LEFT JOIN pg_class c ON d.classid = 'pg_class'::regclass AND c.oid = d.objid
	  LEFT JOIN pg_type t ON d.classid = 'pg_type'::regclass AND t.oid = d.objid
	  LEFT JOIN pg_class tc ON tc.oid = t.typrelid AND tc.relkind = 'c'
	 WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e' AND (t.oid IS NULL OR tc.oid IS NOT NULL)),
commented AS (
	SELECT pg_describe_object(classid, objid, 0) AS object, ours, obj_description(objid, classid::regclass::name) IS NOT NULL AS has
	  FROM members
	UNION ALL
	SELECT relation::regclass || '.' || attname, ours, col_description(relation, attnum) IS NOT NULL
	  FROM members JOIN pg_attribute ON attrelid = relation AND attnum > 0 AND NOT attisdropped)
SELECT object FROM commented
 WHERE has = ours OR %s
 ORDER BY 1
SQL
cmp_ok(scalar(split /\n/, $node->safe_psql('fresh', sprintf $comments, 'has')), '>', 70,
	'the comparison sees functions, and the columns of views and of the composite type');
is($node->safe_psql('fresh', sprintf $comments, 'false'), '', 'what a user sees has a comment, and nothing else');
foreach my $old (split /\n/, $node->safe_psql('postgres',
		"SELECT source FROM pg_extension_update_paths('index_mover') WHERE target = '$current' AND path IS NOT NULL ORDER BY 1"))
{
	my $db = old_database($old);
	update($db, $current);
	is(objects($db), $fresh, "from $old to $current: the same objects as a new $current");
}

# ---- the next version, as scripts/release begins it ------------------------------
SKIP:
{
	my $source = "$FindBin::RealBin/..";
	skip "$dir cannot be written to, or this is no source tree", 1 unless -w $dir && -x "$source/scripts/release";
	my $tree = PostgreSQL::Test::Utils::tempdir;
	my $next = '98.7';
	system_or_bail('sh', '-c', 'cd "$1" && cp -r index_mover.control index_mover--*.sql META.json CHANGELOG.md debian "$2"', 'sh', $source,
		$tree);
	local $ENV{RELEASE_TREE} = $tree;
	system_or_bail("$source/scripts/release", 'next', $next);
	like(slurp_file("$tree/index_mover.control"), qr/^default_version = '\Q$next\E'$/m, 'next: the control file');
	is(scalar(() = slurp_file("$tree/META.json") =~ /"version": "\Q$next\E\.0"/g), 2, 'next: META.json');
	like(slurp_file("$tree/debian/changelog"), qr/\Aindex-mover \(\Q$next\E\.0-1\) .*\n -- .*\n\nindex-mover \(/s,
		'next: debian/changelog');
	like(slurp_file("$tree/CHANGELOG.md"), qr/^## \Q$next\E\.0 \(unreleased\)\n\n## \d/m, 'next: CHANGELOG.md');
	my @scripts = ("index_mover--$current--$next.sql", "index_mover--$next.sql");
	system_or_bail('cp', (map { "$tree/$_" } @scripts), $dir);
	my $ended = eval {
		my $db = old_database($current);
		update($db, $next);
		$node->safe_psql('postgres', 'CREATE DATABASE fresh_next');
		$node->safe_psql('fresh_next', "CREATE EXTENSION index_mover VERSION '$next'");
		is(objects($db), objects('fresh_next'), 'next: after the update, the same objects as a new one');
		1;
	};
	my $problem = $@;
	unlink map { "$dir/$_" } @scripts;
	die $problem unless $ended;
}

# ---- a version made up -----------------------------------------------------------
SKIP:
{
	skip "$dir cannot be written to", 1 unless -w $dir;
	my $addition = <<'SQL';
CREATE FUNCTION @extschema@.index_mover_addition(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT $1 + 1';
REVOKE ALL ON FUNCTION @extschema@.index_mover_addition(int) FROM PUBLIC;
SQL
	# the library reads and writes tables of the next version, until it is replaced, too
	$addition .= "ALTER TABLE $_ ADD COLUMN addition int;\n"
	  foreach (map { "index_mover.$_" } qw(ledger job_log move_log probe sample policy_run)), '@extschema@.tier_policy';
	my $comment = "COMMENT ON FUNCTION \@extschema@.index_mover_addition(int) IS 'for a test';\n";
	my %script = (
		"$current--right" => $addition . $comment,
		"$current--wrong" => $addition,
		'right' => slurp_file("$dir/index_mover--$current.sql") . $addition . $comment);
	append_to_file("$dir/index_mover--$_.sql", $script{$_}) foreach keys %script;
	my $ended = eval {
		$node->safe_psql('postgres', 'CREATE DATABASE fresh_right');
		$node->safe_psql('fresh_right', "CREATE EXTENSION index_mover VERSION 'right'");
		my $right = objects('fresh_right');
		isnt($right, $fresh, 'the next version is another one');
		my $db = old_database($current);
		update($db, 'right');
		is(objects($db), $right, 'after the update: the same objects as a new one');
		is($node->safe_psql($db, <<'SQL'), "t\nt\nt\n0", 'samples, probes and policies with tables of the next version');
SELECT take_index_sample() > 0;
SELECT take_index_sample() >= 0;
SELECT random_read_ms >= 0 FROM tablespace_probe('regress_slow', '0.01 s');
INSERT INTO tier_policy (name, relation, to_tablespace, idle_for) VALUES ('p', 't', 'regress_slow', '1 day');
UPDATE tier_policy SET relation = 't', key_unit = NULL;
SELECT count(*) FROM tier_plan() WHERE moves;
SQL
		is($node->safe_psql($db, "SELECT count(*) FROM run_tier_policies(wait => true)"), '0', 'a run, too');
		$db = old_database($current);
		update($db, 'wrong');
		isnt(objects($db), $right, 'a comment that was forgotten is noticed');
		1;
	};
	my $problem = $@;
	unlink "$dir/index_mover--$_.sql" foreach keys %script;
	die $problem unless $ended;
}

$node->stop;
done_testing();
