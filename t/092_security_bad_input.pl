# Every function of the extension, with every kind of nonsense in each of its
# arguments in turn, every setting with wrong values, at every wrong moment: one
# error that a user can read (never an internal one), in the same session, and
# nothing changed.  And every function called by every kind of role: those may
# who should, and no other role.  (What the messages say: sql/bad_input.sql.)
#
# Fault (security): every function, called by every kind of role
# Fault (input): each kind of nonsense in each argument of each function, each setting with wrong
#   values, each wrong moment: one clean error, and nothing changed
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('bad_input');
$node->safe_psql('postgres', <<'SQL');
CREATE ROLE outsider;
CREATE ROLE monitor IN ROLE pg_monitor;
CREATE ROLE scanner IN ROLE pg_stat_scan_tables;
CREATE ROLE granted;
CREATE ROLE owner;
GRANT CREATE ON TABLESPACE regress_slow, regress_fast TO granted, owner, monitor;
GRANT CREATE ON SCHEMA public TO owner;
SET ROLE owner;
CREATE TABLE t (id int PRIMARY KEY, s text, arr int[]) WITH (autovacuum_enabled = false);
INSERT INTO t SELECT g, 's' || g, ARRAY[g] FROM generate_series(1, 500) g;
CREATE INDEX t_s ON t (s);
CREATE INDEX t_gin ON t USING gin (arr);
CREATE VIEW v AS SELECT * FROM t;
CREATE SEQUENCE seq;
CREATE TYPE composite AS (a int);
RESET ROLE;
SELECT oracle.remember_keys('t'), oracle.remember_metadata('t');
SQL
my $job = $node->safe_psql('postgres', "SELECT max(job) FROM move_indexes('t', 'regress_slow')");
my $jobs = 'SELECT count(*) FROM index_mover_history';
my $jobs_before = $node->safe_psql('postgres', $jobs);

# ---- what to call, and with what ------------------------------------------------
my %good = (
	regclass => "'t_s'", regnamespace => "'public'", relation => "'t'", name => "'regress_fast'", from_tablespace => "'regress_slow'",
	lost => 'true', readable => 'true',
	method => "'copy'", dry_run => 'true', wait => 'true', settings => "'{}'", name_like => "'%'", name_not_like => "'x'",
	min_size => '0', max_size => '1000000', job => $job, setting => "'max_rate'", value => "'1MB'",
	sample_pages => '10', exact => 'false', sample => 'false', duration => "'100 ms'", queue_depth => '4',
	retention => "'1 day'", half_life => "'1 day'", budget => '1000000', random_read_ms => 'NULL', price_per_gb => '0.1',
	quiet => 'false', exact_pages => 'NULL',
	indexes => 'false', index_tablespace => 'NULL', rehearse => 'false', freeze_first => 'false', policy => "'nosuch'",
		unmounted => 'false', policy_name => "'nosuch'", at => 'now()', since => 'now()',
	raise => 'true', max_wait => 'NULL',
	pid => '0', state => "'idle'", backend_type => "'client backend'", keep => 'false', min_age => "'1 s'", message => "'x'");
my @relations = ("'v'", "'seq'", "'composite'", "'nosuch'", '0::oid', '4294967295::oid', '1259::regtype::oid');
my @numbers = ('-1', "'x'", '9223372036854775808');
my %bad = (
	regclass => [ 'NULL', @relations ],
	regnamespace => [ 'NULL', "'nosuch'", '0::oid', '4294967295::oid' ],
	name => [ 'NULL', "''", "'nosuch'", "'pg_global'", "repeat('x', 70)::name", q{E'new\nline'}, q{'"regress_fast"'}, "'REGRESS_FAST'" ],
	method => [ 'NULL', "''", "'fast'", "'copying'", q{E'copy\n'}, "repeat('x', 70)", "'%s'" ],
	boolean => [ 'NULL', "'perhaps'" ],
	settings => [ map { "'$_'" } '[1]', '"x"', '1', 'null', '{', '{"nosuch": 1}', '{"": 1}', '{"MAX_RATE": "1MB"}',
		'{"index_mover.max_rate": "1MB"}' ],
	min_size => [ "'x'", '-1', '1000001', '9223372036854775808' ],
	max_size => [ "'x'", '-1', '9223372036854775808' ],
	name_like => [ q{'\\'} ],
	name_not_like => [ q{'\\'} ],
	job => [ 'NULL', '0', @numbers, '9223372036854775807' ],
	setting => [ 'NULL', "''", "'nosuch'", "'max_workers'", "'work_mem'" ],
	# (what values are right: the settings below; a job that has ended has none)
	value => [ 'NULL' ],
	sample_pages => [ 'NULL', '0', @numbers ],
	duration => [ 'NULL', "'-1 s'", "'1 month'", "'x'", "'0'" ],
	queue_depth => [ 'NULL', '0', '1000000', @numbers ],
	half_life => [ "'x'", "'59 s'", "'11 years'" ],
	retention => [ "'x'", "'-1 us'", "'-100 years'" ],
	min_age => [ "'x'" ],
	max_wait => [ "'x'" ],
	since => [ "'x'" ],
	random_read_ms => [ "'x'", '0', '-1', '1', "'NaN'", "'Infinity'" ],
	price_per_gb => [ "'x'", '0', '-1', "'NaN'" ],
	budget => [ "'x'", '-1', '9223372036854775808' ]);

# Reports choose by what they are given: of what has no indexes they show none.
my %chooses = map { $_ => 1 } ('index_report regclass', 'index_report boolean', 'index_mover_blockers regclass',
	"recommend_moves 'pg_global'",
	# without a policy there is nothing to wait for
	'run_tier_policies NULL');
# Functions for our own views and functions only
my $ours = qr/^index_mover\./;
my @functions = split /\n/, $node->safe_psql('postgres', <<'SQL');
SELECT CASE WHEN p.pronamespace = 'index_mover'::regnamespace THEN 'index_mover.' ELSE '' END || p.proname, p.prokind, p.proisstrict,
  p.pronargs - p.pronargdefaults,
	   (SELECT string_agg(coalesce(p.proargnames[i], '') || ' ' || format_type(u.t, NULL), ',' ORDER BY i)
		  FROM unnest(p.proargtypes) WITH ORDINALITY AS u(t, n)
		 CROSS JOIN LATERAL (SELECT a.i FROM (
				SELECT i, row_number() OVER (ORDER BY i) AS n
				  FROM generate_series(1, coalesce(array_length(p.proargmodes, 1), p.pronargs)) i
				 WHERE p.proargmodes IS NULL OR p.proargmodes[i] IN ('i', 'b', 'v')) a
			WHERE a.n = u.n) x)
  FROM pg_depend d JOIN pg_proc p ON p.oid = d.objid
 WHERE d.classid = 'pg_proc'::regclass AND d.deptype = 'e'
   AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'index_mover')
 -- of two of a name, that of a printed command first
 ORDER BY 1, p.pronamespace <> 'index_mover_call'::regnamespace
SQL
cmp_ok(scalar(@functions), '>=', 25, 'functions: ' . @functions);

sub good_value
{
	my ($function, $name, $type) = @_;
	return "'t_gin'" if $function =~ /gin/ && $type eq 'regclass';
	return $good{ exists $good{$name} ? $name : $type };
}

sub call_of
{
	my ($function, $kind, @values) = @_;
	return $kind eq 'p' ? "CALL $function(" . join(', ', @values) . ')' : "SELECT * FROM $function(" . join(', ', @values) . ')';
}

my (@calls, %good_call);
foreach (@functions)
{
	my ($function, $kind, $strict, $required, $arguments) = split /\|/;
	my @arguments = map { [ split / /, $_, 2 ] } split /,/, $arguments || '';
	my @values = map { good_value($function, @$_) } @arguments;
	$good_call{$function} = call_of($function, $kind, @values);
	foreach my $i (0 .. $#arguments)
	{
		my ($name, $type) = @{ $arguments[$i] };
		foreach my $value (@{ $bad{$name} || $bad{$type} || [] })
		{
			# what a default or STRICT makes of a null is no mistake
			next if $function =~ $ours || $chooses{"$function $type"} || $chooses{"$function $value"};
			next if $value eq 'NULL' && ($strict eq 't' || $i >= $required && $type !~ /boolean/);
			my @with = @values;
			$with[$i] = $value;
			push @calls, call_of($function, $kind, @with);
		}
	}
}
my @settings = split /\n/, $node->safe_psql('postgres',
	"LOAD 'index_mover'; SELECT substring(name, 13), vartype FROM pg_settings WHERE name LIKE 'index\\_mover.%' AND name NOT LIKE "
		. "'%.test\\_%' ORDER BY 1");
foreach (@settings)
{
	my ($name, $type) = split /\|/;
	foreach my $value ('{"a": 1}', '[1]', 'null', $type eq 'string' ? () : ('"no such value"', '""', '-99999999999999', '"NaN"'))
	{
		push @calls, "SELECT * FROM move_indexes('t', 'regress_fast', dry_run => true, settings => '{\"$name\": $value}')";
		push @calls, "SET \"index_mover.$name\" = '$value'" if $type ne 'string' && $value !~ /"/;
	}
}
foreach my $value ('', 'x', '0.05', '-5%', '101%', '5', '5%%', '5%, 6%', '10GB, 1GB', '5%, 10GB, 1', '5%,', 'NaN%')
{
	push @calls, "SET index_mover.min_free_space = '$value'";
}
my $move = "move_indexes('t', 'regress_fast')";
push @calls,
  "BEGIN; SELECT * FROM $move",
  "BEGIN; SAVEPOINT a; SELECT * FROM $move",
  "BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT * FROM $move",
  "BEGIN READ ONLY; SELECT * FROM move_indexes('t', 'regress_fast', wait => false)",
  "BEGIN; DECLARE c CURSOR FOR SELECT * FROM $move; FETCH 1 FROM c",
  "BEGIN; CALL wait_for_move($job)",
  "DO \$\$ BEGIN BEGIN PERFORM * FROM $move; EXCEPTION WHEN division_by_zero THEN NULL; END; END \$\$",
  "SELECT (SELECT count(*) FROM pg_class WHERE relname = 'x'), m.* FROM pg_class c, LATERAL move_indexes(c.oid, 'regress_fast') m WHERE "
  	. "c.relname = 'v'",
  "SET default_transaction_read_only = on; SELECT * FROM $move",
  "PREPARE p AS SELECT * FROM move_indexes(\$1, \$2); EXECUTE p('t', 'nosuch')",
  "SELECT * FROM index_mover_cleanup(NULL)";

# ---- all of them, in one session -----------------------------------------------------
my $script = PostgreSQL::Test::Utils::tempdir() . '/calls.sql';
{
	my $text = "SET client_min_messages = error;\n\\set VERBOSITY verbose\n\\echo session\nSELECT pg_backend_pid();\n";
	foreach my $i (0 .. $#calls)
	{
		# what the last statement of a call says counts; then back to where it was
		$text .= "\\echo call $i\n$calls[$i];\n\\echo :SQLSTATE :LAST_ERROR_SQLSTATE\nROLLBACK;\nRESET default_transaction_read_only;\n";
	}
	append_to_file($script, "$text\\echo session\nSELECT pg_backend_pid();\n");
}
my ($out, $err) = ('', '');
IPC::Run::run([ 'psql', '-XAtq', '-d', $node->connstr('postgres'), '-f', $script ], '>', \$out, '2>', \$err,
	IPC::Run::timer($IndexMover::Test::TIMEOUT));
my @pids = $out =~ /^session\n(\d+)$/mg;
is(scalar(@pids), 2, 'the session goes on to its end') or diag $err;
is($pids[0], $pids[1], 'it is the same one');
my %state;
$state{$1} = $2 while $out =~ /^call (\d+)\n(?:(?!call ).*\n)*?([0-9A-Z]{5}) [0-9A-Z]{5}$/mg;
is(scalar(keys %state), scalar(@calls), 'each call has an answer: ' . @calls);
my @internal = grep { ($state{$_} || '') =~ /^XX/ } 0 .. $#calls;
is(join("\n", map { $calls[$_] } @internal), '', 'no internal error');
my @accepted = grep { ($state{$_} || '00000') eq '00000' } 0 .. $#calls;
is(join("\n", map { $calls[$_] } @accepted), '', 'no call is accepted');
is($node->safe_psql('postgres', $jobs), $jobs_before, 'no job came of it');
all_right($node, 't', 'bad input', within => 5);
note 'count: bad inputs ' . @calls;
note 'count: bad inputs, one clean error ' . (@calls - @internal - @accepted);

# ---- who may call what -----------------------------------------------------------------
# Functions not named here are for all roles: they show what all may see.
my %only = (
	(map { $_ => 'superuser' } qw(move_indexes move_schema_indexes move_tablespace_indexes undo_move wait_for_move cancel_move
		  pause_move resume_move alter_move index_mover_cleanup move_table move_schema_tables evacuate_tablespace
		  heal_tablespace
		  tier_plan run_tier_policies)),
	(map { $_ => 'scanner' } qw(index_bloat gin_pending_list index_mover.pending_advice index_mover.pending_list
		  index_mover.pending_steps)),
	(map { $_ => 'monitor' } qw(index_mover.relation_report index_mover.movable_methods
		  index_mover.policy_conflicts index_mover.policy_fault index_mover.scheduler_looks index_mover.stats_since index_report
		  tablespace_probe take_index_sample withdraw_probes relation_heat index_mover.relation_heat recommend_moves
		  index_mover_check index_mover.problems index_mover.device_problems
		  index_mover.readable_tables index_mover.leftover_problems index_mover.job_problems index_mover.policy_problems)));
# Functions of ours are out of reach for who may not look into their schema, and
# their privileges the same as those of the functions that use them.
is($node->safe_psql('postgres',
	"SELECT string_agg(rolname, ' ') FROM pg_roles WHERE NOT rolsuper AND rolname !~ '^pg_' AND has_schema_privilege(oid, 'index_mover', "
		. "'USAGE')"),
	'', 'only superusers call our own functions');
$node->safe_psql('postgres', 'GRANT USAGE ON SCHEMA index_mover TO PUBLIC');
my ($cells, $right) = (0, 0);
my $super = $node->safe_psql('postgres', 'SELECT current_user');
# (pg_monitor is a member of pg_stat_scan_tables)
my %may = (outsider => {}, scanner => { scanner => 1 }, monitor => { scanner => 1, monitor => 1 },
	granted => { superuser => 1 }, owner => { superuser => 1 }, $super => { superuser => 1, scanner => 1, monitor => 1 });
foreach my $function (grep { ($only{$_} || '') eq 'superuser' } map { (split /\|/)[0] } @functions)
{
	$node->safe_psql('postgres', "GRANT EXECUTE ON ROUTINE $function TO granted, owner");
}
foreach my $role (sort keys %may)
{
	my @wrong;
	my $text = "SET client_min_messages = error;\n\\set VERBOSITY verbose\n";
	my @names = sort keys %good_call;
	$text .= "\\echo call $_\nSET ROLE \"$role\";\n$good_call{$names[$_]};\n\\echo :SQLSTATE x\nRESET ROLE;\n" for 0 .. $#names;
	unlink $script;
	append_to_file($script, $text);
	IPC::Run::run([ 'psql', '-XAtq', '-d', $node->connstr('postgres'), '-f', $script ], '>', \$out, '2>', \$err,
		IPC::Run::timer($IndexMover::Test::TIMEOUT));
	my %answer;
	$answer{$1} = $2 while $out =~ /^call (\d+)\n(?:(?!call ).*\n)*?([0-9A-Z]{5}) x$/mg;
	foreach my $i (0 .. $#names)
	{
		my $name = $names[$i];
		my $expected = !$only{$name} || $may{$role}{ $only{$name} };
		# EXECUTE is not enough: the table is its owner's, the job another role's;
		# but all may wait
		$expected = 0 if $role eq 'granted'
			&& $name =~ /^(?:move_indexes|move_table|undo_move|cancel_move|pause_move|resume_move|alter_move)$/;
		$expected = 0 if $role eq 'owner' && $name =~ /^(?:undo_move|cancel_move|pause_move|resume_move|alter_move)$/;
		my $got = ($answer{$i} || '42501') ne '42501';
		$cells++;
		if ($got == !!$expected) { $right++ }
		else { push @wrong, "$name: " . ($answer{$i} || 'no answer') . ($expected ? ', but it may' : ', but it may not') }
	}
	is(join("\n", @wrong), '', "$role: what it may call") or diag $err;
}
note "count: privilege cells $cells";
note "count: privilege cells as specified $right";
$node->stop;
done_testing();
