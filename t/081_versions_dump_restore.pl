# A database with the extension in pg_dump and pg_restore: the indexes are where
# they were, privileges on the functions and policies are kept; history, job numbers and what
# crashed moves have left behind are not taken along.
#
# Fault (security): what a dump takes along: no jobs, no leftovers; rights are kept
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('dump');
$node->safe_psql('postgres', <<'SQL');
CREATE ROLE regress_mover;
CREATE ROLE regress_owner;
GRANT EXECUTE ON FUNCTION move_indexes(regclass, name, text, boolean, boolean, boolean, jsonb) TO regress_mover;
CREATE TABLE t (id int PRIMARY KEY, v int);
INSERT INTO t SELECT g, g FROM generate_series(1, 5000) g;
CREATE INDEX t_v ON t (v);
CREATE INDEX t_stays ON t (v, id);
SQL
$node->safe_psql('postgres', "SELECT move_indexes('$_', 'regress_fast', 'copy')") foreach 't_pkey', 't_v';
$node->safe_psql('postgres', <<'SQL');
INSERT INTO tier_policy (name, relation, to_tablespace, older_than, settings)
  VALUES ('old', 't', 'regress_fast', '1 year', '{"max_rate": "1MB"}');
INSERT INTO tier_policy (name, from_tablespace, to_tablespace, start_at, stop_at) VALUES ('full', 'regress_fast', 'regress_slow', 0.9, 0.8);
SQL
$node->safe_psql('postgres', <<'SQL');
CREATE ROLE regress_super SUPERUSER;
INSERT INTO tier_policy (name, relation, to_tablespace, older_than, owner) VALUES
	('owned', 't', 'regress_fast', '1 year', 'regress_owner'), ('super', 't', 'regress_fast', '1 year', 'regress_super');
SQL
my $policies = "SELECT * FROM tier_policy WHERE name <> 'super' ORDER BY name";
leave_behind($node, 'postgres');
cmp_ok($node->safe_psql('postgres', 'SELECT count(*) FROM index_mover_cleanup(dry_run => true)'), '>=', 2,
	'a rebuild and a copy have left something behind');
my $history = $node->safe_psql('postgres', 'SELECT count(*) FROM index_mover_history');

my $file = PostgreSQL::Test::Utils::tempdir() . '/dump';
foreach my $way ([ 'custom', 'custom' ], [ 'plain', 'plain' ], [ 'custom', 'replica' ], [ 'plain', 'replica_plain' ])
{
	my ($format, $name) = @$way;
	my $option = "--format=$format";
	my $db = "restored_$name";
	# some restore so to get past foreign keys and triggers
	local $ENV{PGOPTIONS} = $name =~ /replica/ ? '-c session_replication_role=replica' : '';
	$node->command_ok([ 'pg_dump', $option, '-f', "$file.$format", '-d', $node->connstr('postgres') ], "$name: dump");
	$node->safe_psql('postgres', "CREATE DATABASE $db");
	$node->command_ok(
		$format eq 'custom'
		? [ 'pg_restore', '--exit-on-error', '-d', $node->connstr($db), "$file.$format" ]
		: [ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr($db), '-f', "$file.$format" ],
		"$name: restore");
	is(tablespace_of_index($node, 't', dbname => $db), "t_pkey: regress_fast\nt_stays: default\nt_v: regress_fast",
		"$name: the indexes are in the same tablespaces");
	is($node->safe_psql($db, <<'SQL'), 't|f', "$name: privileges on the functions are kept");
SELECT has_function_privilege('regress_mover', oid, 'EXECUTE'), has_function_privilege('regress_owner', oid, 'EXECUTE')
  FROM pg_proc WHERE proname = 'move_indexes' AND pronamespace = 'public'::regnamespace
SQL
	is($node->safe_psql($db, $policies), $node->safe_psql('postgres', $policies), "$name: the policies are there");
	# in another cluster another role can have both its name and its OID
	is($node->safe_psql($db, "SELECT owner, owner_oid FROM tier_policy WHERE name = 'super'"), 'regress_super|',
		"$name: no superuser is made an owner");
	is($node->safe_psql($db, "UPDATE tier_policy SET owner = owner WHERE name = 'super' RETURNING owner_oid::regrole"), 'regress_super',
		"$name: but another role can");
	is($node->safe_psql($db, 'SELECT count(*) FROM index_mover_history'), '0', "$name: the history is empty");
	is($node->safe_psql($db, 'SELECT count(*) FROM index_mover_cleanup()'), '0', "$name: there is nothing to clean up");
	is($node->safe_psql($db,
		"SELECT string_agg(c.relname, ' ') FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE NOT i.indisvalid"),
		'', "$name: no invalid index came along");
	is($node->safe_psql($db, "SELECT job, status FROM move_indexes('t_stays', 'regress_fast', 'copy')"), '1|moved',
		"$name: moves work, and jobs are counted from 1");
	files_ok($node, $name, dbname => $db);
}

# without the role it loads, and the plan says so; nor is a role of its name and another OID the same
$node->safe_psql('postgres', 'DROP ROLE regress_super; CREATE ROLE regress_super');
$node->safe_psql('postgres',
	"DELETE FROM tier_policy WHERE name = 'owned'; DROP OWNED BY regress_owner; DROP ROLE regress_owner; CREATE DATABASE roleless");
$node->command_ok([ 'pg_restore', '--no-owner', '-d', $node->connstr('roleless'), "$file.custom" ], 'a restore without the role')
  or diag 'as above';
is($node->safe_psql('roleless', "SELECT policy, reason FROM tier_plan() WHERE policy IN ('owned', 'super') ORDER BY 1"),
	"owned|the policy has no valid owner\nsuper|the policy has no valid owner", 'the plan says so');
my $other = PostgreSQL::Test::Utils::tempdir() . '/privileges';
my (undef, undef, $refused) = $node->psql('postgres',
	'CREATE ROLE regress_dumper LOGIN; GRANT SELECT ON ALL TABLES IN SCHEMA public TO regress_dumper');
$node->command_fails_like([ 'pg_dump', '-d', $node->connstr('postgres') . ' user=regress_dumper', '-t', 'tier_policy', '-f', $other ],
	qr/query would be affected by row-level security policy for table "tier_policy"|permission denied/,
		'a dump by another role is refused, and not a part of it');

# ---- a dump of 1.0.0, whose policies could have a function ------------------------------------------
$node->safe_psql('postgres', 'CREATE DATABASE of_candidate');
# as the changes say
$node->safe_psql('of_candidate', 'CREATE EXTENSION index_mover CASCADE; ALTER TABLE tier_policy ADD COLUMN now_function text');
my $super = $node->safe_psql('of_candidate', 'SELECT current_user');
$node->safe_psql('of_candidate', <<"SQL");
CREATE EXTENSION IF NOT EXISTS index_mover WITH SCHEMA public;
CREATE TABLE days (d date) PARTITION BY RANGE (d);
CREATE TABLE days_1 PARTITION OF days FOR VALUES FROM ('2020-01-01') TO ('2020-02-01');
CREATE TABLE numbers (n int) PARTITION BY RANGE (n);
CREATE TABLE numbers_1 PARTITION OF numbers FOR VALUES FROM (0) TO (1000);
COPY public.tier_policy (name, enabled, relation, to_tablespace, parts, older_than, now_function, owner, owner_oid) FROM stdin;
plain	t	public.days	regress_slow	all	1 year	\\N	$super	10
number	t	public.numbers	regress_slow	all	1 day	public.key_of(interval)	$super	10
clock	t	public.days	regress_slow	all	1 day	public.today()	$super	10
\\.
SQL
my $called_no_more = 'it is disabled: now_function "public.key_of(interval)" is called no more';
is($node->safe_psql('of_candidate', 'SELECT policy, relation, moves, reason FROM tier_plan() ORDER BY 1'), <<"ROWS" =~ s/\n\z//r,
clock||f|it is disabled: now_function "public.today()" is called no more
number||f|$called_no_more
plain|days_1|t|its rows end at 2020-02-01
ROWS
	'what had a function is disabled, and says so');
is($node->safe_psql('of_candidate', "SELECT kind, detail FROM index_mover_check() WHERE object = 'number'"),
	"failing policy|$called_no_more",
	'also the check');
is($node->safe_psql('of_candidate', 'SELECT name FROM run_tier_policies(wait => true)'), 'days_1', 'only the others are carried out');
like(($node->psql('of_candidate', "UPDATE tier_policy SET enabled = true WHERE name = 'clock'"))[2],
	qr/ERROR:  tier policy "clock" has a now_function/, 'nor is it enabled so');
$node->safe_psql('of_candidate', "UPDATE tier_policy SET key_unit = 'days', now_function = NULL, enabled = true WHERE name = 'number'; "
	. "DELETE FROM tier_policy WHERE name = 'clock'; ALTER TABLE tier_policy DROP COLUMN now_function");
is($node->safe_psql('of_candidate', "SELECT relation, moves FROM tier_plan('number')"), 'numbers_1|t',
	'when it is told what its key means');
is($node->safe_psql('of_candidate', "SELECT count(*) FROM index_mover_check() WHERE kind = 'failing policy'"), 0, 'it is well');

# and the original still knows what is its own
is($node->safe_psql('postgres', 'SELECT count(*) FROM index_mover_history'), $history, 'the original has its history');
$node->safe_psql('postgres', 'SELECT index_mover_cleanup()');
leftovers_ok($node, 'the original, after cleanup', within => 5);
files_ok($node, 'the original, after cleanup');

$node->stop;
done_testing();
