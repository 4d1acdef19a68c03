# IndexMover::Fuzz::Calls
#   What a session of the fuzzer does: calls of the extension's functions, procedures and
#   views, as the catalogs describe them, with arguments drawn by type and name, in all
#   contexts; and beside them changes of rows, DDL, maintenance.
#
# A step is { statements => [SQL, ...], think => seconds before it, call => 1 if it calls
# the extension }.  The sequence of steps of a session depends on the seed alone: what
# depends on the state (the last job) is a subquery.
package IndexMover::Fuzz::Calls;

use strict;
use warnings;

use IndexMover::Fuzz::Random;
use IndexMover::Fuzz::World qw(quote_name literal);

our $TWINS = $IndexMover::Fuzz::World::TWINS;

# What the catalogs say of the extension: { routines => [...], views => [...],
# settings => [...], policy => [columns], version }.
sub read_catalogs
{
	my ($node, $db) = @_;
	my $rows = sub { return map { [ split /\x1f/, $_, -1 ] } split /\n/, $node->safe_psql($db, $_[0]) };
	my @routines = map {
		{ schema => $_->[0], name => $_->[1], kind => $_->[2], names => [ split /,/, $_->[3] ],
			types => [ split /,/, $_->[4] ], defaults => $_->[5] }
	} $rows->(<<'SQL');
SELECT concat_ws(E'\x1f', n.nspname, p.proname, p.prokind, coalesce(array_to_string((p.proargnames)[1:p.pronargs], ','), ''),
		coalesce((SELECT string_agg(t::regtype::text, ',' ORDER BY o) FROM unnest(p.proargtypes) WITH ORDINALITY AS u(t, o)), ''),
			p.pronargdefaults)
  FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid JOIN pg_proc p ON p.oid = d.objid
	JOIN pg_namespace n ON n.oid = p.pronamespace
 WHERE d.classid = 'pg_proc'::regclass AND e.extname = 'index_mover' AND p.prorettype NOT IN ('trigger'::regtype)
 ORDER BY 1
SQL
	my @views = map { $_->[0] } $rows->(<<'SQL');
SELECT format('%I.%I', n.nspname, c.relname)
  FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid JOIN pg_class c ON c.oid = d.objid
	JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE d.classid = 'pg_class'::regclass AND e.extname = 'index_mover' AND c.relkind IN ('v', 'r') ORDER BY 1
SQL
	my @settings = map { { name => $_->[0], type => $_->[1], values => [ split /,/, $_->[2] ], unit => $_->[3], context =>
		$_->[4] } } $rows->(<<'SQL');
LOAD 'index_mover';
SELECT concat_ws(E'\x1f', substr(name, 13), vartype, coalesce(array_to_string(enumvals, ','), ''), coalesce(unit, ''), context)
  FROM pg_settings WHERE name LIKE 'index\_mover.%' AND name NOT LIKE '%test%' ORDER BY 1
SQL
	my @policy = map { $_->[0] } $rows->(<<'SQL');
SELECT a.attname FROM pg_extension e JOIN pg_class c ON c.relname = 'tier_policy' AND c.relnamespace = e.extnamespace
  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped WHERE e.extname = 'index_mover' ORDER BY 1
SQL
	my ($schema) = map { $_->[0] } $rows->("SELECT extnamespace::regnamespace FROM pg_extension WHERE extname = 'index_mover'");
	# of another database, and not of this one
	my $foreign = $node->safe_psql('fuzz2', "SELECT 'fz.big'::regclass::oid");
	return { foreign => $foreign, routines => \@routines, views => \@views, settings => \@settings, policy => \@policy, schema => $schema,
		version => int($node->safe_psql($db, 'SHOW server_version_num') / 10000) };
}

my @tables = (
	'fz.d0', 'fz.d1', 'fz.d2', 'fz."d2 part 0"', 'fz."d2 part 1"', 'fz.d3', 'fz.d4', 'fz.d5', 'fz.rec0', 'fz.rec1', 'fz.big',
	q{fz."Tab ""le' x"}, '"fz Other".parent', '"fz Other".child', 'fz.mat', 'fz.rec0_view', 'fz.empty', 'fz.lost', 'fz.months',
	'fz.months_1', 'fz.months_4', 'fz.keys', 'fz.member', 'fz.d6', 'fz.d7', 'fz."d7 hashed"', 'fz."d7 hashed 1"', 'fz."d7 other"',
	'fz.d8', 'fz."d8 child"', 'fz.kept', 'fz.kept', 'fz.brief1', 'fz.brief2', 'fz.brief3');
my @odd_relations = ('fz.foreign_table', 'fz.plain_view', 'fz.seq', 'fz.composite', 'pg_class', 'pg_proc', 'pg_toast.pg_toast_1255',
	'no.such_table', 'pg_temp.tmp', 'index_mover.ledger', 'pg_database', 'tier_policy');

sub new
{
	my ($class, %options) = @_;
	my $self = bless {%options}, $class;
	$self->{r} = IndexMover::Fuzz::Random->new($options{seed}, 'session', $options{number}, 'round', $options{round});
	return $self;
}

# ---------------------------------------------------------------------------
# Arguments
# ---------------------------------------------------------------------------
sub relation
{
	my ($self) = @_;
	my $r = $self->{r};
	# mostly what the role may move
	my @mine = @{ $self->{world}{owned}{ $self->{role} } || [] };
	@mine = @tables if !@mine || $r->chance(30);
	my @my_d = grep { defined } map { /^fz\.d(\d)$/ ? $1 : undef } @mine;
	my $index = sub {
		my $d = @my_d ? $r->pick(@my_d) : $r->below($TWINS);
		return $r->pick("fz.d${d}_pkey", "fz.\"d$d Ix " . $r->below(16) . '"', 'fz."big t"', 'fz.big_pkey', 'fz."rec0 ix"',
			'fz."rec1 part"',
			'fz.lost_t', 'fz.lost_hash', '"fz Other".child_id_idx', "fz.\"d$d invalid\"", 'fz."d0 not valid"', 'fz.d6_later',
			'fz.d6_exclusion',
			'fz.kept_exclusion', 'fz."kept expressions"', 'fz."rec1 domain"', 'fz."d8 child k"', 'fz.brief1_pkey');
	};
	my $what = $r->weighted(table => 50, index => 35, odd => 7, number => 4, null => 2, toast => 2);
	return literal($r->pick(@mine)) . '::regclass' if $what eq 'table';
	return literal($index->()) . '::regclass' if $what eq 'index';
	return literal($r->pick(@odd_relations)) . '::regclass' if $what eq 'odd';
	return $r->pick('0', '1', '4294967295', '16384', '2619', $self->{catalogs}{foreign}) . '::oid::regclass' if $what eq 'number';
	return "(SELECT reltoastrelid::regclass FROM pg_class WHERE oid = 'fz.d1'::regclass)" if $what eq 'toast';
	return 'NULL::regclass';
}

sub tablespace
{
	my ($self) = @_;
	my $r = $self->{r};
	return 'NULL' if $r->chance(2);
	return literal($r->pick('no such', '', 'pg_global', 'x' x 60, 'fz_brief', 'fz_brief')) if $r->chance(5);
	return literal($r->pick('pg_default', 'pg_default', 'fz_a', 'fz_a', 'fz_b', 'fz_b', q{fz C'd}, 'fz_lost', 'fz_device'));
}

# The value of a setting, as JSON.
sub setting_value
{
	my ($self, $setting) = @_;
	my $r = $self->{r};
	return $r->pick('null', '""', '[1]', '{"a": 1}', '1e400', '-1', '"x"', 'true', '"NaN"', '99999999999999') if $r->chance(5);
	my ($name, $type) = @$setting{qw(name type)};
	return '"' . $r->pick(@{ $setting->{values} }) . '"' if $type eq 'enum' && @{ $setting->{values} };
	return $r->pick('true', 'false', '"on"', '"off"') if $type eq 'bool';
	return '"' . $r->pick('infinity', 'now', '23:59', '2020-01-01', '') . '"' if $name eq 'swap_after';
	return $r->pick('"200kB"', '"4MB"', '0', '1') if $name eq 'max_rate';
	return $r->pick('"1s"', '"5s"', '"100ms"', '0', '"2min"') if $setting->{unit} =~ /^(ms|s|min)$/;
	return $r->pick('0', '1', '2', '64', '"1MB"') if $type eq 'integer';
	return $r->pick('0', '0.3', '1', '"50%"') if $type eq 'real';
	return '"' . $r->pick('', 'btree', 'fuzz', '*', 'bloom') . '"';
}

sub settings
{
	my ($self) = @_;
	my $r = $self->{r};
	return 'NULL' if $r->chance(40);
	return literal($r->pick('[]', '1', '"x"', '{"no_such": 1}', '{"max_rate": {}}', '{}')) . '::jsonb' if $r->chance(6);
	my %chosen;
	foreach (0 .. $r->below(3))
	{
		my $setting = $r->pick(@{ $self->{catalogs}{settings} });
		# one that only superusers may set is refused at once
		next if $setting->{context} ne 'user' && $self->{kind} ne 'superuser' && !$r->chance(15);
		$chosen{ $setting->{name} } = $self->setting_value($setting);
	}
	return literal('{' . join(', ', map { "\"$_\": $chosen{$_}" } sort keys %chosen) . '}') . '::jsonb';
}

sub job
{
	my ($self) = @_;
	my $r = $self->{r};
	return $r->pick('NULL', '0', '-1', '9223372036854775807', '1', '2') . '::bigint' if $r->chance(15);
	return "(SELECT coalesce(max(job), 1) - " . $r->pick(0, 0, 0, 1, 2, 5) . " FROM $self->{catalogs}{schema}.index_mover_jobs)";
}

sub interval
{
	my ($self) = @_;
	my $r = $self->{r};
	return 'NULL::interval' if $r->chance(4);
	my @odd = ($self->{catalogs}{version} >= 17 ? ('infinity', '-infinity') : (), '-1 s', '-178000000 years', '178000000 years', '0');
	return literal($r->chance(20) ? $r->pick(@odd) : $r->pick('1 s', '1 min', '10 days', '1 year', '100 days', '0.1 s')) . '::interval';
}

# An argument by its type and name.
sub argument
{
	my ($self, $name, $type) = @_;
	my $r = $self->{r};
	if ($type eq 'regclass') { return $self->relation }
	if ($type eq 'regnamespace') { return $r->chance(6) ? $r->pick('NULL', '0::oid::regnamespace', "'pg_catalog'::regnamespace",
		"'pg_toast'::regnamespace")
		: literal($r->pick('fz', '"fz Other"', 'public')) . '::regnamespace' }
	if ($type eq 'name' && $name =~ /tablespace/) { return $self->tablespace }
	if ($type eq 'name') { return literal($r->pick('p0', 'p1', 'p2', 'no such policy', '', 'p' x 60)) }
	if ($name eq 'method') { return literal($r->chance(5) ? $r->pick('', 'COPY', 'x' x 60, undef) : $r->pick('auto', 'copy', 'copy',
		'rebuild')) }
	if ($name eq 'setting') { return literal($r->chance(8) ? 'no_such' : $r->pick(@{ $self->{catalogs}{settings} })->{name}) }
	if ($name eq 'value') { return literal($self->setting_value($r->pick(@{ $self->{catalogs}{settings} })) =~ s/"//gr) }
	if ($name =~ /like/) { return $r->pick(q{'%'}, q{'d%'}, q{''}, q{'%Ix%'}, 'NULL', q{'\\'}, q{'%\\'}) }
	if ($type eq 'text') { return $r->pick(q{''}, q{'cancel_move'}, q{'resume_move'}, q{'x'}, 'NULL', "repeat('x', 3000)") }
	if ($type eq 'text[]') { return $r->pick(q{'{}'}, q{'{1}'}, q{'{a,NULL}'}, 'NULL') . '::text[]' }
	if ($type eq 'boolean') { return $name eq 'wait' ? $r->pick(('false', 'false', 'true') x 4, 'NULL') : $r->pick(('true', 'false',
		'false') x 4, 'NULL') }
	if ($type eq 'jsonb') { return $self->settings }
	if ($type eq 'bigint' && $name eq 'job') { return $self->job }
	if ($type eq 'bigint') { return $r->pick('NULL', '0', '1', '10000', '100000', '100000000', '-1', '9223372036854775807') . '::bigint' }
	if ($type eq 'integer') { return $r->pick('NULL', '0', '1', '2', '10', '400', '-1', '2147483647') . '::int' }
	if ($type eq 'interval') { return $self->interval }
	if ($type =~ /^time without/) { return $r->pick('NULL', "'00:00'", "'24:00'", "'23:00'") . '::time' }
	if ($type =~ /^timestamp/) { return $r->pick('NULL', "'infinity'", "'-infinity'", 'now()', "'2030-01-01'", "'294276-12-31'",
		"'4713-01-01 BC'") . '::timestamptz' }
	return "NULL::$type";
}

# A call of some routine of the extension: the expression, and whether it is a CALL.
sub routine_call
{
	my ($self) = @_;
	my $r = $self->{r};
	my $all = $self->{catalogs}{routines};
	# those that move, steer and clean up more often than the rest
	my @chosen = grep { $_->{schema} eq $self->{catalogs}{schema} =~ s/^"(.*)"$/$1/r } @$all;
	@chosen = grep { $_->{name} =~ /^move_|evacuate|undo|resume|heal|cancel|pause|alter|run_tier/ } @chosen if $r->chance(65);
	@chosen = @$all if $r->chance(8);
	my $routine = $r->pick(@chosen);
	my $n = @{ $routine->{types} };
	my $given = $r->chance(25) ? $n : $n - $r->below($routine->{defaults} + 1);
	my @arguments;
	foreach my $i (0 .. $n - 1)
	{
		my ($name, $type) = ($routine->{names}[$i] // '', $routine->{types}[$i]);
		my $needed = $i < $n - $routine->{defaults};
		next unless $needed || $i < $given && $r->chance(60);
		my $value = $self->argument($name, $type);
		# CALL takes no subquery
		$value = 1 + $r->below(40) if $routine->{kind} eq 'p' && $value =~ /^\(SELECT/;
		push @arguments, $needed || $name eq '' ? $value : "$name => $value";
	}
	return (quote_name($routine->{schema}) . ".$routine->{name}(" . join(', ', @arguments) . ')', $routine->{kind} eq 'p',
		$routine->{name});
}

# ---------------------------------------------------------------------------
# Calls in all contexts
# ---------------------------------------------------------------------------
sub call
{
	my ($self) = @_;
	my $r = $self->{r};
	my ($expression, $is_procedure, $name) = $self->routine_call;
	my $query = $is_procedure ? "CALL $expression" : $r->chance(80) ? "SELECT * FROM $expression" : "SELECT $expression";
	if ($r->chance(12))
	{
		my $view = $r->pick(@{ $self->{catalogs}{views} });
		$query = $r->chance(70) ? "SELECT * FROM $view" : "SELECT count(*) FROM $view v JOIN $view w USING ("
			. ($view =~ /jobs|history|progress/ ? 'job' : 'name') . ')';
		$is_procedure = 0;
	}
	my $context = $r->weighted(autocommit => 50, block => 7, subtransaction => 5, function => 5, do => 6, procedure => 4, cursor => 5,
		hold => 2,
		parallel => 3, read_only => 3, serializable => 3, prepared => 5, timeout => 8, role => 3, lock => 2, as_table => 2,
		extended => 7, portal => 3, together => 3);
	my $perform = $is_procedure ? $query : $query =~ s/^SELECT/PERFORM/r;
	my $tag = '$fuzz$';
	my %statements = (
		autocommit => [$query],
		block => [ 'BEGIN', $query, $r->pick('COMMIT', 'COMMIT', 'ROLLBACK', "PREPARE TRANSACTION 'fz_$self->{number}'"),
			"ROLLBACK PREPARED 'fz_$self->{number}'" ],
		subtransaction => [ 'BEGIN', 'SAVEPOINT s', $query, $r->pick('ROLLBACK TO s', 'RELEASE s'), 'COMMIT' ],
		function => [ "CREATE OR REPLACE FUNCTION pg_temp.f() RETURNS void LANGUAGE plpgsql AS ${tag}BEGIN $perform; END${tag}",
			'SELECT pg_temp.f()' ],
		do => [ "DO ${tag}BEGIN $perform; EXCEPTION WHEN others THEN RAISE NOTICE '% %', SQLSTATE, SQLERRM; END${tag}" ],
		procedure => [ "CREATE OR REPLACE PROCEDURE pg_temp.p() LANGUAGE plpgsql AS ${tag}BEGIN COMMIT; $perform; COMMIT; END${tag}",
			'CALL pg_temp.p()' ],
		cursor => $is_procedure ? [$query] : [ 'BEGIN', "DECLARE c CURSOR FOR $query", 'FETCH 1 FROM c', 'FETCH ALL FROM c', 'CLOSE c',
			'COMMIT' ],
		hold => $is_procedure ? [$query] : [ "DECLARE h CURSOR WITH HOLD FOR $query", 'FETCH 1 FROM h', 'CLOSE h' ],
		parallel => [ 'SET ' . ($self->{catalogs}{version} >= 16 ? 'debug_parallel_query' : 'force_parallel_mode') . ' = on', $query,
			'RESET ' . ($self->{catalogs}{version} >= 16 ? 'debug_parallel_query' : 'force_parallel_mode') ],
		read_only => [ 'BEGIN READ ONLY', $query, 'COMMIT' ],
		serializable => [ 'BEGIN ISOLATION LEVEL SERIALIZABLE', 'SELECT count(*) FROM twin.d0', $query, 'COMMIT' ],
		prepared => $is_procedure ? [$query] : [ "PREPARE q AS $query", 'EXECUTE q', 'EXECUTE q', 'DEALLOCATE q' ],
		timeout => [ 'SET statement_timeout = ' . (1 + $r->below(200)), $query, "SET statement_timeout = '20s'" ],
		role => [ 'SET ROLE ' . quote_name($r->pick(@IndexMover::Fuzz::World::LOGINS, 'fz_group')), $query, 'RESET ROLE' ],
		lock => [ 'BEGIN', 'LOCK TABLE ' . $r->pick(@tables[ 0 .. 12 ]) . ' IN ' . $r->pick('ACCESS SHARE', 'SHARE', 'ACCESS EXCLUSIVE')
			. ' MODE',
			$query, 'COMMIT' ],
		as_table => [ "CREATE TEMP TABLE fz_result AS $query", 'DROP TABLE IF EXISTS fz_result' ],
		# by Parse, Bind, Execute and Sync (IndexMover::Fuzz::Client); one row of all
		extended => ["/*extended*/ $query"],
		portal => ["/*portal*/ $query"],
		together => ["$query; SELECT 1"],
	);
	return { statements => $statements{$context}, call => 1, name => $name };
}

# A policy is written, changed or removed.
sub policy
{
	my ($self) = @_;
	my $r = $self->{r};
	my $table = "$self->{catalogs}{schema}.tier_policy";
	my $name = literal('p' . $r->below(3));
	return { statements => [ "DELETE FROM $table WHERE name = $name" ], call => 1 } if $r->chance(20);
	my %value = (
		relation => sub { $self->relation }, schema => sub { literal($r->pick('fz', 'fz Other', 'no such')) },
		from_tablespace => sub { $self->tablespace }, to_tablespace => sub { $self->tablespace }, parts => sub { literal($r->pick('all',
			'table', 'indexes', 'x')) },
		older_than => sub { $self->interval }, idle_for => sub { $self->interval }, budget => sub { $self->argument('budget', 'bigint') },
		start_at => sub { $r->pick('0.5', '0.9', '0', "'NaN'", '0.01') }, stop_at => sub { $r->pick('0.4', '0.8', '0.001') },
		every => sub { $r->pick("'1 s'", "'1 h'", "'infinity'", "'0'") }, settings => sub { $self->settings }, owner => sub {
			literal($r->pick(@IndexMover::Fuzz::World::LOGINS, 'postgres')) },
		enabled => sub { $r->pick('true', 'false') }, min_stay => sub { $self->interval }, max_bytes_per_run => sub { $self->argument('',
			'bigint') },
		freeze_first => sub { $r->pick('true', 'false') }, window_start => sub { "'00:00'" }, window_end => sub { $r->pick("'24:00'",
			"'00:00'") },
		idle_of => sub { literal($r->pick('use', 'change', 'index use')) }, key_unit => sub { literal($r->pick('seconds', 'days', 'uuid7',
			'yyyymm', 'x')) },
		key_zero => sub { $r->pick('0', '1288834974657', "'NaN'") }, keys_per_second => sub { $r->pick('1', '1000', '0', "'Infinity'") },
		now_function => sub { literal($r->pick('now()', 'fz.no_such()')) });
	my %known = map { $_ => 1 } @{ $self->{catalogs}{policy} };
	my @chosen = ('to_tablespace', $r->pick([ 'older_than', 'relation' ], ['idle_for'], [ 'budget', 'from_tablespace' ],
			[ 'start_at', 'stop_at', 'from_tablespace' ]));
	@chosen = ('to_tablespace', ref $chosen[1] ? @{ $chosen[1] } : ());
	push @chosen, grep { !/now_function|key/ || $r->chance(20) } map { $r->pick(sort keys %value) } 1 .. 1 + $r->below(4);
	my %seen;
	@chosen = grep { $known{$_} && !$seen{$_}++ } @chosen;
	my %values = map { $_ => $value{$_}->() } @chosen;
	my $sql = $r->chance(75)
	  ? "INSERT INTO $table (name, " . join(', ', @chosen) . ") VALUES ($name, " . join(', ', map { $values{$_} } @chosen) . ")"
	  : "UPDATE $table SET " . join(', ', map { "$_ = $values{$_}" } @chosen) . " WHERE name = $name";
	return { statements => [$sql], call => 1 };
}

# ---------------------------------------------------------------------------
# Everything else
# ---------------------------------------------------------------------------

# A change of a table with a twin, of rows that only this session changes.
sub change
{
	my ($self) = @_;
	my $r = $self->{r};
	my $n = $self->{number};
	my $d = 'd' . $r->below($TWINS);
	my ($from, $rows, $salt) = ($r->below(200), $r->pick(1, 5, 60), $r->below(1000));
	my $row = $IndexMover::Fuzz::World::ROW;
	$row =~ s/repeat\('text ' \|\| g % 1009, 1 \+ g % 3\)/repeat(md5((g + $salt)::text), 1 + (g % 3) * 70)/ if $d eq 'd1';
	# rows of the child of a table are there from the beginning, and only changed
	my $first = $d eq 'd8' && $r->chance(40) ? $IndexMover::Fuzz::World::CHILD : 0;
	my $mine = "id % 16 = $n AND id BETWEEN $first + 16 * $from AND $first + 16 * " . ($from + $rows);
	my $sql = $r->weighted(insert => 4, update => 4, hot => 2, delete => 2, upsert => 2);
	my %one = (
		insert =>
			"INSERT INTO TABLE_ (id, k, t, n, p, rng, a, doc, j) SELECT $row FROM (SELECT 16 * x + $n AS g
				FROM generate_series($from, $from + $rows) x) s ON CONFLICT (id) DO NOTHING",
		upsert =>
			"INSERT INTO TABLE_ (id, k, t, n, p, rng, a, doc, j) SELECT $row FROM (SELECT 16 * x + $n AS g
				FROM generate_series($from, $from + $rows) x) s ON CONFLICT (id) DO UPDATE SET k = excluded.k + $salt,
				t = 'upserted $salt'",
		update =>
			"UPDATE TABLE_ SET k = (id * $salt) % 97, n = id + $salt, t = md5((id + $salt)::text), p = point(id, $salt),
				a = ARRAY[id, $salt], doc = to_tsvector('simple', 'c' || id) WHERE $mine",
		hot => "UPDATE TABLE_ SET rng = rng WHERE $mine",
		delete => "DELETE FROM TABLE_ WHERE $mine");
	my $pair = join '; ', map { $one{$sql} =~ s/TABLE_/$_.$d/r } 'fz', 'twin';
	my $end = $r->weighted(once => 60, commit => 15, rollback => 5, savepoint => 10, prepare => 6, slow => 4);
	my $gid = "fz_dml_$n";
	return { statements => $end eq 'once' ? [$pair]
		  : $end eq 'commit' ? [ 'BEGIN', $pair, 'SELECT count(*) FROM fz.d0', 'COMMIT' ]
		  : $end eq 'rollback' ? [ 'BEGIN', $pair, 'ROLLBACK' ]
		  : $end eq 'slow' ? [ 'BEGIN', $pair, 'SELECT pg_sleep(' . $r->pick(0.2, 0.7, 2) . ')', 'COMMIT' ]
		  : $end eq 'prepare' ? [ 'BEGIN', $pair, "PREPARE TRANSACTION '$gid'", 'SELECT pg_sleep(0.1)', "COMMIT PREPARED '$gid'" ]
		  : [ 'BEGIN', $pair, 'SAVEPOINT a', $pair =~ s/\b$salt\b/0/gr, 'ROLLBACK TO a', 'COMMIT' ] };
}

# A change of a table with recorders, by a role that may.
sub change_recorder
{
	my ($self) = @_;
	my $r = $self->{r};
	my @mine = grep { my $rec = $_; grep { $_ eq $self->{role} } @{ $rec->{roles} } } @{ $self->{world}{recorders} };
	return $self->change unless @mine;
	my $table = $r->pick(@mine)->{table};
	my $id = 100 + 16 * $r->below(50) + $self->{number};
	return { statements => [ $r->pick("INSERT INTO $table (id, t) VALUES ($id, 'x') ON CONFLICT DO NOTHING",
			"UPDATE $table SET v = v + 1 WHERE id % 16 = $self->{number}", "DELETE FROM $table WHERE id = $id", "ANALYZE $table",
			"REFRESH MATERIALIZED VIEW CONCURRENTLY ${table}_view") ] };
}

sub ddl
{
	my ($self) = @_;
	my $r = $self->{r};
	my $n = $self->{number};
	my $d = 'd' . $r->below($TWINS);
	my $space = quote_name($r->pick('pg_default', @IndexMover::Fuzz::World::TABLESPACES));
	my $function = $r->pick(map { "index_mover.$_" } 'tier_policy_check', 'not_by_replication', 'tier_policy_change', 'no_such');
	if ($r->chance(12)) { return { statements => $self->goes_and_comes_back } }
	return { statements => ["CREATE TABLE IF NOT EXISTS fz.brief$n (i int PRIMARY KEY)",
			"CREATE TRIGGER odd " . $r->pick('BEFORE', 'AFTER') . ' ' . $r->pick('INSERT', 'UPDATE', 'DELETE', 'TRUNCATE')
				. " ON fz.brief$n "
			. $r->pick('', 'FOR EACH ROW') . " EXECUTE FUNCTION $function()", "INSERT INTO fz.brief$n VALUES (-1)",
				"UPDATE fz.brief$n SET i = i",
			"DELETE FROM fz.brief$n WHERE i < 0", "TRUNCATE fz.brief$n", "DROP TABLE fz.brief$n"], call => 1 }
	  if $r->chance(4);
	return { statements => [ $r->pick(
			"REINDEX INDEX CONCURRENTLY fz.${d}_pkey", "REINDEX TABLE CONCURRENTLY fz.$d", "REINDEX TABLE fz.$d",
			"CREATE INDEX CONCURRENTLY IF NOT EXISTS \"extra $n\" ON fz.$d (k)", "DROP INDEX CONCURRENTLY IF EXISTS fz.\"extra $n\"",
			"CREATE INDEX IF NOT EXISTS \"extra $n\" ON fz.$d (t) TABLESPACE $space", "DROP INDEX IF EXISTS fz.\"extra $n\"",
			"ALTER MATERIALIZED VIEW fz.mat SET TABLESPACE $space", "ALTER TABLE fz.months SET TABLESPACE $space",
			'ALTER ' . $r->pick('TABLE', 'INDEX', 'MATERIALIZED VIEW') . ' ALL IN TABLESPACE ' . $r->pick('fz_a', 'fz_b', 'pg_default')
			  . " SET TABLESPACE $space",
			"ALTER TABLE fz.$d SET TABLESPACE $space", "ALTER INDEX IF EXISTS fz.\"$d Ix 0\" SET TABLESPACE $space",
			"ALTER TABLE fz.$d ADD COLUMN IF NOT EXISTS x$n int DEFAULT 3", "ALTER TABLE fz.$d DROP COLUMN IF EXISTS x$n",
			"ALTER INDEX IF EXISTS fz.\"$d Ix 1\" RENAME TO \"$d Ix renamed\"",
				"ALTER INDEX IF EXISTS fz.\"$d Ix renamed\" RENAME TO \"$d Ix 1\"",
			"ALTER TABLE fz.$d SET (fillfactor = " . $r->pick(70, 90) . ')', "CLUSTER fz.$d USING ${d}_pkey", "VACUUM FULL fz.$d",
			"VACUUM (FREEZE) fz.$d", "VACUUM fz.$d", "ANALYZE fz.$d", "VACUUM (INDEX_CLEANUP off) fz.$d",
			"ALTER TABLE fz.$d OWNER TO " . quote_name($r->pick(@IndexMover::Fuzz::World::OWNERS)),
			"GRANT SELECT ON fz.$d TO fz_nobody", "REVOKE SELECT ON fz.$d FROM fz_nobody", "REFRESH MATERIALIZED VIEW fz.mat",
			"ALTER TABLE fz.months DETACH PARTITION fz.months_2" . $r->pick('', '', ' CONCURRENTLY'),
			"ALTER TABLE fz.months ATTACH PARTITION fz.months_2 FOR VALUES FROM ('2025-02-01') TO ('2025-03-01')",
			'ALTER TABLE fz.months DETACH PARTITION fz.months_4 FINALIZE',
			'ALTER TABLE fz.months DETACH PARTITION fz.months_4 CONCURRENTLY',
			"ALTER TABLE fz.months ATTACH PARTITION fz.months_4 FOR VALUES FROM ('2025-04-01') TO ('2025-05-01')",
			"CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS \"extra $n\" ON fz.$d (k)",
			"CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS \"$d invalid\" ON fz.$d ((id * 0)) TABLESPACE $space",
			"DROP INDEX IF EXISTS fz.\"$d invalid\"", "REINDEX INDEX CONCURRENTLY fz.\"$d invalid\"",
			"REINDEX INDEX fz.\"d0 not valid\"", "ALTER TABLE fz.$d CLUSTER ON ${d}_pkey", "ALTER TABLE fz.$d SET WITHOUT CLUSTER",
			"ALTER TABLE fz.$d REPLICA IDENTITY USING INDEX ${d}_pkey", "ALTER TABLE fz.$d REPLICA IDENTITY DEFAULT",
			"ALTER TABLE fz.$d ALTER k SET STATISTICS " . $r->pick(0, 10, 500), "ALTER TABLE fz.$d ALTER n SET (n_distinct = 5)",
			# (not of t: core gives indexes that storage, too, and crashes in gtrgm_penalty() then)
			"ALTER TABLE fz.$d ALTER n SET STORAGE " . $r->pick('PLAIN', 'MAIN', 'EXTENDED', 'EXTERNAL'),
			"ALTER TABLE fz.$d ALTER t SET COMPRESSION pglz", "ALTER INDEX fz.${d}_pkey SET (fillfactor = " . $r->pick(60, 90) . ')',
			"ALTER INDEX IF EXISTS fz.\"d6 expressions\" ALTER COLUMN 2 SET STATISTICS " . $r->pick(5, 90),
			"DROP STATISTICS IF EXISTS fz.stat$n", "ALTER TABLE fz.$d ALTER x$n TYPE " . $r->pick('bigint', 'int'),
			"ALTER TABLE fz.$d ADD CONSTRAINT u$n UNIQUE (id, k) DEFERRABLE INITIALLY " . $r->pick('DEFERRED', 'IMMEDIATE')
				. " USING INDEX TABLESPACE $space", "ALTER TABLE fz.$d DROP CONSTRAINT IF EXISTS u$n",
			"ALTER TABLE fz.$d ADD CONSTRAINT e$n EXCLUDE USING gist (id WITH =)", "ALTER TABLE fz.$d DROP CONSTRAINT IF EXISTS e$n",
			"ALTER DOMAIN fz.number ADD CONSTRAINT c$n CHECK (VALUE > -2000000000)", "ALTER DOMAIN fz.number DROP CONSTRAINT IF EXISTS c$n",
			"VACUUM (PARALLEL 2) fz.$d", "COMMENT ON TABLE fz.$d IS 'session $n'", "ALTER TABLE fz.months_1 SET TABLESPACE $space",
			($self->{catalogs}{version} >= 19 ? ("REPACK fz.$d USING INDEX ${d}_pkey", "REPACK (CONCURRENTLY) fz.$d") : ()),
			"ALTER TABLE fz.empty SET LOGGED", "ALTER TABLE fz.empty SET UNLOGGED",
				"CREATE STATISTICS IF NOT EXISTS fz.stat$n ON k, n FROM fz.$d",
			"CREATE TEMP TABLE IF NOT EXISTS tmp (i int PRIMARY KEY)", "DROP TABLE IF EXISTS pg_temp.tmp",
			"DROP TABLE IF EXISTS fz.brief$n; CREATE TABLE fz.brief$n (i int PRIMARY KEY) TABLESPACE $space; INSERT INTO fz.brief$n
				SELECT generate_series(1, 3000)",
			"DROP TABLE IF EXISTS fz.brief$n", "TRUNCATE fz.brief$n",
			"ALTER TABLE fz.$d REPLICA IDENTITY FULL", "CREATE SCHEMA IF NOT EXISTS fz_brief$n", "DROP SCHEMA IF EXISTS fz_brief$n") ] };
}

# A relation goes, or has another name, or is in another schema, for a moment.  What is left
# so when the round ends, IndexMover::Fuzz sets right by RESTORE.
our @RESTORE = (
	'ALTER SCHEMA "fz Away" RENAME TO "fz Other"', 'ALTER TABLESPACE "fz away" RENAME TO fz_b', 'ALTER TABLE fz."big away" RENAME TO big',
	map { ("ALTER TABLE \"fz Other\".d$_ SET SCHEMA fz", "ALTER TABLE fz.\"d$_ away\" RENAME TO d$_") } 0 .. $TWINS - 1);

sub goes_and_comes_back
{
	my ($self) = @_;
	my $r = $self->{r};
	my $n = $self->{number};
	my $d = 'd' . $r->below($TWINS);
	my $space = quote_name($r->pick('pg_default', @IndexMover::Fuzz::World::TABLESPACES));
	my $index = "\"$d Ix " . $r->pick(0, 2, 9) . '"';
	my $pause = 'SELECT pg_sleep(' . $r->pick(0, 0.05, 0.3) . ')';
	return $r->pick(
		[ "ALTER TABLE fz.$d RENAME TO \"$d away\"", $pause, "ALTER TABLE fz.\"$d away\" RENAME TO $d" ],
		[ "ALTER TABLE fz.$d SET SCHEMA \"fz Other\"", $pause, "ALTER TABLE \"fz Other\".$d SET SCHEMA fz" ],
		[ 'ALTER TABLE fz.big RENAME TO "big away"', $pause, 'ALTER TABLE fz."big away" RENAME TO big' ],
		[ 'ALTER SCHEMA "fz Other" RENAME TO "fz Away"', $pause, 'ALTER SCHEMA "fz Away" RENAME TO "fz Other"' ],
		[ "DROP INDEX IF EXISTS fz.$index", $pause, "CREATE INDEX IF NOT EXISTS $index ON fz.$d (k) TABLESPACE $space" ],
		[ "CREATE INDEX CONCURRENTLY IF NOT EXISTS $index ON fz.$d (n) TABLESPACE $space", "DROP INDEX CONCURRENTLY IF EXISTS fz.$index" ],
		[ 'DROP TABLE IF EXISTS fz.months_3', $pause,
			"CREATE TABLE IF NOT EXISTS fz.months_3 PARTITION OF fz.months FOR VALUES FROM ('2025-03-01') TO ('2025-04-01')
				TABLESPACE $space",
			"INSERT INTO fz.months_3 SELECT '2025-03-02', g FROM generate_series(1, 300) g" ],
		[ 'BEGIN', "ALTER TABLE fz.$d RENAME TO \"$d away\"", $pause, 'ROLLBACK' ],
		[ "DROP TABLE IF EXISTS fz.brief$n", "CREATE TABLE fz.brief$n (i int PRIMARY KEY, t text) TABLESPACE $space",
			"INSERT INTO fz.brief$n SELECT g, md5(g::text) FROM generate_series(1, 30000) g", "CREATE INDEX ON fz.brief$n (t)",
			"SELECT * FROM $self->{catalogs}{schema}.move_table('fz.brief$n', 'fz_a', indexes => true, wait => false)", $pause,
			$r->pick("DROP TABLE fz.brief$n", "TRUNCATE fz.brief$n", "ALTER TABLE fz.brief$n RENAME t TO u", "REINDEX TABLE fz.brief$n") ]);
}

sub read
{
	my ($self) = @_;
	my $r = $self->{r};
	my $d = 'd' . $r->below($TWINS);
	return { statements => $r->pick(
			["SELECT count(*), sum(k) FROM fz.$d WHERE k = " . $r->below(97)],
			["SELECT id FROM fz.$d WHERE t LIKE 'text 1%' ORDER BY id LIMIT 10"],
			["SELECT count(*) FROM fz.$d WHERE a @> ARRAY[" . $r->below(31) . "]"],
			[ 'BEGIN ISOLATION LEVEL REPEATABLE READ', "SELECT count(*) FROM fz.$d", 'SELECT pg_sleep(' . $r->pick(0.1, 0.5, 1.5) . ')',
				'COMMIT' ],
			[ 'BEGIN ISOLATION LEVEL REPEATABLE READ', 'SELECT count(*) FROM fz.months', 'SELECT pg_sleep(' . $r->pick(0.1, 1) . ')',
				'COMMIT' ],
			[ 'SELECT count(*) FROM fz.big', "SELECT t FROM fz.big WHERE t > 'a' ORDER BY t LIMIT 3" ]) };
}

# What a session does next.
sub next_step
{
	my ($self) = @_;
	my $r = $self->{r};
	my $what = $r->weighted(%{ $self->{weights} });
	my $step = $self->$what;
	$step->{what} = $what;
	$step->{think} = $r->pick(0, 0, 0.01, 0.05, 0.3);
	return $step;
}

# ---------------------------------------------------------------------------
# The disturber: a superuser, and the hands of whoever runs the server.  A statement
# that begins with a backslash is for IndexMover::Fuzz::Actions.
# ---------------------------------------------------------------------------
sub disturb
{
	my ($self) = @_;
	my $r = $self->{r};
	my $nth = $r->below(8);
	# in the first round nothing crashes: what is left over then has no excuse
	my $crashes = $self->{round} > 1 ? 1 : 0;
	my $what = $r->weighted(cancel => 10, terminate => 5, cancel_worker => 8, terminate_worker => 6, kill_worker => 4 * $crashes,
		kill_backend => $crashes,
		restart => 1, immediate => $crashes, settings => 6, checkpoint => 8, switch => 3, steer => 12, cleanup => 5, vacuum => 6, full => 3,
		unreadable => 2, stop_process => 3, lock => 5, owner => 2, standby => 1, extension => 1, database => 1, tablespace => 4,
		prepared => 3, members => 3, space => 2, sleep => 10);
	my $schema = $self->{catalogs}{schema};
	my ($role, $member) = map { $IndexMover::Fuzz::World::LOGINS[$_] } $r->below(5), $r->below(5);
	my %statement = (
		map({ $_ => "\\$_ $nth" } 'cancel', 'terminate', 'cancel_worker', 'terminate_worker', 'kill_worker', 'kill_backend', 'database',
			'stop_process'),
		map({ $_ => "\\$_" } 'restart', 'immediate', 'standby', 'extension'),
		tablespace => $r->pick("CREATE TABLESPACE fz_brief LOCATION ''", 'DROP TABLESPACE IF EXISTS fz_brief'),
		settings => '\set ' . $r->pick('index_mover.verify = on', 'index_mover.verify = off', 'autovacuum = on', 'autovacuum = off',
			'index_mover.online_alter = on', 'index_mover.online_alter = off', 'index_mover.online_alter = require',
			"index_mover.scheduler_databases = '*'", "index_mover.scheduler_databases = ''", 'full_page_writes = off',
				'full_page_writes = on',
			'wal_compression = on', 'hot_standby_feedback = on', "index_mover.max_rate = '1MB'", 'index_mover.max_rate = 0',
				'deadlock_timeout = 50ms',
			'checkpoint_timeout = 30s', 'index_mover.resumable_size = 64kB', 'index_mover.min_free_space = 0',
				'index_mover.history_retention = 1d',
			'synchronous_commit = off', 'statement_timeout = 0', 'idle_in_transaction_session_timeout = 2s'),
		checkpoint => 'CHECKPOINT', switch => 'SELECT pg_switch_wal()',
		steer => "SELECT $schema." . $r->pick('cancel_move(max(job))', 'cancel_move(max(job), true)', 'pause_move(max(job))',
			'resume_move(max(job))',
			"alter_move(max(job), 'max_rate', '100kB')", "alter_move(max(job), 'max_rate', '0')",
				"alter_move(max(job), 'swap_after', 'now')") . " FROM $schema.index_mover_progress",
		cleanup => "SELECT * FROM $schema.index_mover_cleanup(" . $r->pick('', 'true') . ')',
		vacuum => 'VACUUM ' . $r->pick('', '(FREEZE)', '(FULL) pg_class', 'pg_class', 'index_mover.ledger', 'index_mover.move_log'),
		lock => 'BEGIN; LOCK TABLE fz.d' . $r->below($TWINS) . ' IN ' . $r->pick('SHARE', 'ROW EXCLUSIVE', 'ACCESS SHARE',
			'ACCESS EXCLUSIVE') . ' MODE; SELECT pg_sleep(' . $r->pick(0.05, 0.3, 1, 3) . '); COMMIT',
		# it holds a lock, also over a restart, until a session ends it
		prepared => [ "BEGIN; LOCK TABLE fz.d" . $r->below($TWINS) . ' IN ' . $r->pick('SHARE', 'ROW EXCLUSIVE', 'ACCESS EXCLUSIVE')
			. " MODE; PREPARE TRANSACTION 'fz_lock'", 'SELECT pg_sleep(' . $r->pick(0.3, 2, 5) . ')', $r->pick(('\restart') x $crashes,
				'SELECT 1', 'SELECT 1', 'SELECT 1'), "ROLLBACK PREPARED 'fz_lock'" ],
		members => $r->chance(50) ? IndexMover::Fuzz::World::membership($r, $self->{catalogs}{version}, $role, $member)
			: 'REVOKE ' . quote_name($role) . ' FROM ' . quote_name($member),
		space => $r->pick([ 'ALTER TABLESPACE fz_b RENAME TO "fz away"', 'SELECT pg_sleep(0.3)',
				'ALTER TABLESPACE "fz away" RENAME TO fz_b' ],
			[ 'ALTER TABLESPACE fz_a SET (random_page_cost = ' . $r->pick(1, 3) . ')' ],
			[ 'REVOKE CREATE ON TABLESPACE fz_a FROM fz_one', 'SELECT pg_sleep(1)', 'GRANT CREATE ON TABLESPACE fz_a TO fz_one' ]),
		owner => $r->pick('REASSIGN OWNED BY fz_nobody TO fz_one', 'DROP OWNED BY fz_nobody'),
		sleep => 'SELECT pg_sleep(0.5)');
	return { statements => [ "\\$what $nth", 'SELECT pg_sleep(' . $r->pick(0.3, 1, 2.5) . ')', '\mend' ], what => $what, think => 0.1 }
	  if $what eq 'full' || $what eq 'unreadable';
	my $statements = $statement{$what};
	return { statements => ref $statements ? $statements : [$statements], what => $what, think => $r->pick(0.1, 0.4, 1) };
}

1;
