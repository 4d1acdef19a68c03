# index_mover_check(), and what deploy/ has for monitors: every query runs as pg_monitor
# on a server with jobs of every state and gives the columns that the files name; the
# files parse; the exporters and Prometheus themselves, where they are installed.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use HTTP::Tiny;
use IndexMover::Session;
use IndexMover::Test;
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Time::HiRes 'usleep';
use Test::More;

needs_test_points();

my $deploy = "$FindBin::RealBin/../deploy";
plan skip_all => 'no directory deploy' unless -d $deploy;
my $node = new_node('monitored', conf => "listen_addresses = '127.0.0.1'\n");
my $sql = sub { return $node->safe_psql('postgres', @_); };
my $as_monitor = sub { return $node->safe_psql('postgres', $_[0], extra_params => [ '-U', 'monitor' ]); };
$sql->('CREATE ROLE monitor LOGIN; GRANT pg_monitor TO monitor');

# ---------------------------------------------------------------------------
# index_mover_check()
# ---------------------------------------------------------------------------
my $check = 'SELECT severity, kind, object, command FROM index_mover_check(%s) ORDER BY kind';
is($as_monitor->(sprintf $check, ''), '', 'all is well: no row');

leave_behind($node, 'postgres');
my $cleanup = 'SELECT * FROM index_mover_call.index_mover_cleanup();';
my $rows = $as_monitor->(sprintf $check, '');
my ($of_rebuild, $of_copy) = (qr/invalid index\|[^|]*behind_rebuild_i_ccnew/, qr/unfinished copy\|pg_tblspc\/[^|]*/);
like($cleanup, qr/^SELECT \* FROM index_mover_call\./, 'a command that cannot be captured');
my $ended = qr/warning\|ended job\|job \d+\|SELECT index_mover_call\.resume_move\(\d+\);/;
like($rows, qr/\A$ended\n$ended\nwarning\|$of_rebuild\|\Q$cleanup\E\nwarning\|$of_copy\|\Q$cleanup\E\z/, 'leftovers, and their jobs');
is($sql->("SELECT string_agg(status, ' ' ORDER BY job) FROM index_mover_jobs"), 'interrupted interrupted', 'and interrupted jobs');

$sql->(<<'SQL');
CREATE TABLE lost (i int PRIMARY KEY);
CREATE TABLE ruin (i int PRIMARY KEY USING INDEX TABLESPACE regress_fast);
CHECKPOINT;
SQL
my $of_catalog = $sql->("SELECT indexrelid::regclass FROM pg_index
	WHERE indrelid = (SELECT reltoastrelid FROM pg_class WHERE oid = 'pg_seclabel'::regclass)");
my ($path, $ruin, $catalog) = map { $node->data_dir . '/' . $sql->("SELECT pg_relation_filepath('$_')") } qw(lost_pkey ruin_pkey),
	$of_catalog;
rename $_, "$_.away" or die "$_: $!" foreach $path, $catalog;
truncate $ruin, 0 or die "$ruin: $!";
my $heal = 'SELECT * FROM index_mover_call.heal_tablespace';
is( $as_monitor->("SELECT severity, kind, object, detail, command FROM index_mover_check() WHERE severity = 'error' "
		. 'ORDER BY kind COLLATE "C", object'),
	"error|lost file|$of_catalog|its file is missing|\n"
	  . "error|lost file|public.lost_pkey|its file is missing|$heal('pg_default');\n"
	  . "error|lost file|public.ruin_pkey|its file is empty|$heal('regress_fast');",
	'a lost file and a ruin');
is($sql->("SELECT name FROM heal_tablespace('pg_default', dry_run => true)"), 'lost_pkey',
	'heal_tablespace() passes over system catalogs and their TOAST tables');
rename "$_.away", $_ or die "$_: $!" foreach $path, $catalog;
$sql->($_) foreach 'DROP TABLE ruin', 'CREATE TABLE moves (i int)', "SELECT * FROM move_table('moves', 'regress_fast')";
# (the move has removed the file that another has left)
like($as_monitor->(sprintf $check, ''), qr/\A$ended\n$ended\nwarning\|invalid index\|[^\n]*\z/, 'both mended');

$sql->(<<'SQL');
CREATE MATERIALIZED VIEW whole AS SELECT 1 AS i;
CREATE TABLE gone (d date) PARTITION BY RANGE (d);
CREATE TABLE ages (d date) PARTITION BY RANGE (d);
CREATE ROLE regress_renamed;
INSERT INTO tier_policy (name, relation, to_tablespace, older_than) VALUES ('fails', 'whole', 'regress_slow', '1 day'),
	('gone', 'gone', 'regress_slow', '1 day'), ('nowhere', 'ages', 'no_such_place', '1 day');
INSERT INTO tier_policy (name, relation, to_tablespace, older_than, owner)
	VALUES ('renamed', 'ages', 'regress_slow', '1 day', 'regress_renamed');
INSERT INTO tier_policy (name, relation, to_tablespace, older_than, every) VALUES ('well', 'ages', 'regress_slow', '1 day', '1 day');
DROP TABLE gone;
ALTER ROLE regress_renamed RENAME TO regress_other;
SQL
$node->psql('postgres', 'SELECT * FROM run_tier_policies()');
# its last run had a job, which is not what is wrong with it
$sql->(q{UPDATE index_mover.policy_run SET job = 1, result = 'job', message = NULL WHERE policy = 'renamed'});
is($as_monitor->("SELECT severity, object, regexp_replace(detail, 'OID \\d+', 'OID N'), command FROM index_mover_check() WHERE kind = "
	. "'failing policy' ORDER BY 2"), <<'ROWS' =~ s/\n\z//r, 'policies that fail: wrong, without a relation, a tablespace, an owner');
warning|fails|"whole" is not a partitioned table|
warning|gone|relation with OID N does not exist|
warning|nowhere|tablespace "no_such_place" does not exist|
warning|renamed|the policy has no valid owner|
ROWS
is($as_monitor->("SELECT severity, object, detail, command FROM index_mover_check() WHERE kind = 'unscheduled policy'"),
	'warning|well|it has every, but no scheduler looks into this database: see index_mover.scheduler_databases|',
	'and one that no scheduler carries out');
$sql->('DELETE FROM tier_policy; DROP ROLE regress_other');

# A table that a superuser has locked holds up no monitor: it has a row, and the rows of the others are there.
my $locker = IndexMover::Session->new($node);
my $locker_pid = $locker->pid;
$sql->("INSERT INTO tier_policy (name, relation, to_tablespace, older_than, every) "
	. "VALUES ('well', 'ages', 'regress_slow', '1 day', '1 day')");
my %without = (ledger => 'ended job, locked table, unscheduled policy', job_log => 'invalid index, locked table',
	move_log => 'invalid index, locked table', policy_run => 'ended job, invalid index, locked table');
foreach my $table (sort keys %without)
{
	$locker->run("BEGIN; LOCK TABLE index_mover.$table");
	is($as_monitor->("SET statement_timeout = '30s'; SELECT string_agg(DISTINCT kind, ', ' ORDER BY kind) FROM index_mover_check()"),
		$without{$table}, "$table is locked: index_mover_check()");
	is($as_monitor->("SET statement_timeout = '30s'; SELECT severity, object, detail, command FROM index_mover_check() "
		. "WHERE kind = 'locked table'"), "warning|index_mover.$table|process $locker_pid has locked it, so the problems on record there "
		. "are not known|SELECT pg_catalog.pg_terminate_backend($locker_pid);", "$table is locked: who has locked it");
	$locker->run('COMMIT');
}
# no session has locked it, but a session waits for that, behind a reader
my $reader = IndexMover::Session->new($node);
$reader->run('BEGIN; SELECT FROM index_mover.ledger LIMIT 1');
$locker->run('BEGIN');
$locker->send('LOCK TABLE index_mover.ledger');
poll_until($node, "SELECT count(*) FROM pg_locks WHERE relation = 'index_mover.ledger'::regclass AND NOT granted", '1',
	'a lock is waited for');
is($as_monitor->("SET statement_timeout = '30s'; SELECT detail, command FROM index_mover_check() WHERE kind = 'locked table'"),
	'a prepared transaction has locked it, or a session waits to lock it, so the problems on record there are not known|',
	'a lock is waited for: no command');
$reader->end;
$locker->answer;
$locker->run('COMMIT');
$locker->end;
is($as_monitor->('SELECT DISTINCT kind FROM index_mover_check() ORDER BY kind'), "ended job\ninvalid index\nunscheduled policy",
	'no table is locked');
$sql->('DELETE FROM tier_policy');

# Relations that come, go and get other files meanwhile are no lost files.
my $ddl = start_call($node, 'ddl', join "\n",
	map { 'SET default_tablespace = ' . ($_ % 2 ? 'regress_fast' : 'pg_default')
		  . "; CREATE TABLE come$_ (i int PRIMARY KEY); TRUNCATE come$_; REINDEX TABLE come$_; DROP TABLE come$_;" } 1 .. 300);
my ($looks, $found) = (0, '');
while (call_is_running($ddl))
{
	$found .= $sql->("SELECT object FROM index_mover_check() WHERE kind = 'lost file'");
	$looks++;
}
finish_call($ddl);
is($found, '', "no lost file in $looks looks beside DDL");

# ---------------------------------------------------------------------------
# Percent and time left of a job, over its whole length
# ---------------------------------------------------------------------------
$sql->(<<'SQL');
CREATE TABLE long (i int, t text) WITH (autovacuum_enabled = off, toast.autovacuum_enabled = off);
ALTER TABLE long ALTER t SET STORAGE external;
INSERT INTO long SELECT g, CASE WHEN g % 10 = 0 THEN repeat('x', 3000) END FROM generate_series(1, 20000) g;
CREATE INDEX long_i ON long (i);
SQL
my $call = held_at($node, 'copy-verifying:2', q{SELECT max(job) FROM move_table('long', 'regress_fast', indexes => true, }
	. q{wait => false, settings => '{"max_workers": 1, "max_rate": "4MB", "pacing": false}')});
my $whole = (finish_call($call))[1] =~ s/\s//gr;
my $columns = 'percent, extract(epoch FROM eta) < 0.5 * size / bytes_per_second';
my ($percent, $short) = split /\|/, $sql->("SELECT $columns FROM index_mover_jobs WHERE job = $whole");
cmp_ok($percent, '>', 80, "what is copied still counts when it is compared ($percent %)");
is($short, 't', 'and needs no time any more');
my $client = IndexMover::Session->new($node);
$client->run("SET index_mover.progress_interval = '100ms'");
$client->send("CALL wait_for_move($whole)");
for (1 .. 200)
{
	last if $client->has_answered || $client->errors =~ /: verifying/;
	usleep(50_000);
}
like($client->errors, qr/NOTICE:  [^\n]*: verifying(?:(?!MB\/s).)*$/m, 'a waiting client hears no rate of an earlier phase');
my $old = IndexMover::Session->new($node);
$old->run('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM index_mover_jobs');
let_go($call);
my @seen = ([ 0, '' ]);
until ($seen[-1][1] eq 'moved')
{
	push @seen, [ split /\|/, $sql->("SELECT percent, status, (SELECT phase FROM index_mover_progress p WHERE p.job = j.job)"
		. " FROM index_mover_jobs j WHERE job = $whole") ];
}
my @falls = grep { $seen[$_][0] < $seen[ $_ - 1 ][0] } 1 .. $#seen;
is(scalar(@falls), 0, 'the percent of a job never falls') or diag explain [ @seen[ map { $_ - 1, $_ } @falls ] ];
is($seen[-1][0], 100, 'and ends with 100');
is(scalar(grep { $_->[0] == 100 && ($_->[2] // '') =~ /copying|verifying|swap/ } @seen), 0, 'which it is not before the last swap');
note scalar(@seen) . ' looks';
my $states = "SELECT status, (SELECT string_agg(DISTINCT status, ',') FROM index_mover_history h WHERE h.job = j.job) "
  . "FROM index_mover_jobs j WHERE job = $whole";
is($old->run($states), 'running|moved,running', 'for an older snapshot it has not ended, and is not interrupted');
$old->run('COMMIT');
is($old->run($states), 'moved|moved', 'for a new one it has');
$client->run('BEGIN; SELECT 1 FROM long LIMIT 1');
my $waits = $sql->(q{SELECT max(job) FROM move_table('long', 'regress_slow', wait => false, settings => '{"max_rate": "8MB"}')});
poll_until($node, "SELECT phase, bytes_per_second, eta FROM index_mover_progress WHERE job = $waits", 'waiting for lock to swap||',
	'a copy that waits for a lock has no rate');
$sql->("SELECT cancel_move($waits)");
$_->end foreach $old, $client;
wait_for_job_end($node, $waits);

my $log = -s $node->logfile;
$sql->(q{SELECT move_indexes('long', 'regress_slow', 'copy', rehearse => true)});
like(slurp_file($node->logfile, $log), joined(
	qr/LOG:  [^\n]*job \d+ \([^)]*\): begins to rehearse the move of 1 index, /,
	qr/(?s:.*)rehearsed the move of index "public\.long_i" \([^)]*\) from tablespace "regress_fast" to "regress_slow" in [0-9.]+ s/,
	qr/\n[^\n]*DETAIL:  Copied (?s:.*)has ended, 1 of 1 index rehearsed in /), 'what the log says of a rehearsal');
unlike(slurp_file($node->logfile, $log), qr/did not move|0 of 1/, 'is no failure');
$sql->('DROP TABLE long');

# ---------------------------------------------------------------------------
# Jobs of every state
# ---------------------------------------------------------------------------
$sql->("CREATE TABLE $_ (i int); INSERT INTO $_ SELECT generate_series(1, 20000); CREATE INDEX ${_}_i ON $_ (i) TABLESPACE regress_slow")
  foreach qw(done tried in_place broken stopped waits rests works);
$sql->("SELECT move_indexes('done', 'regress_fast')");
$sql->("SELECT move_indexes('tried', 'regress_fast', rehearse => true)");
$sql->("SELECT move_indexes('in_place', 'regress_slow', wait => false)");
set_tests($node, test_mutation => 'read-back');
$sql->("SELECT move_indexes('broken', 'regress_fast', 'copy')");
set_tests($node);
my $rests = "SELECT count(*) FROM index_mover_progress WHERE job = %d AND throttled_by = '%s'";
my $job = begin_job($node, 'stopped', 'regress_fast', max_rate => '64kB');
poll_until($node, sprintf($rests, $job, 'max_rate'), 1, 'it copies');
$sql->("SELECT cancel_move($job)");
wait_for_no_worker($node);
$job = begin_job($node, 'rests', 'regress_fast', max_rate => '64kB');
poll_until($node, sprintf($rests, $job, 'max_rate'), 1, 'it copies');
$sql->("SELECT pause_move($job)");
poll_until($node, "SELECT status FROM index_mover_jobs WHERE job = $job", 'paused', 'it is paused');
my $holder = IndexMover::Session->new($node);
$holder->run('BEGIN; SELECT count(*) FROM waits');
my $waiting = begin_job($node, 'waits', 'regress_fast');
poll_until($node, "SELECT count(*) FROM index_mover_progress WHERE job = $waiting AND blocked_by <> '{}' AND blocked_since < now()",
	1, 'it waits for the reader');
begin_job($node, 'works', 'regress_fast', max_rate => '64kB');
poll_until($node, 'SELECT count(name) FROM index_mover_progress', 3, 'three at work');
is($sql->('SELECT string_agg(DISTINCT status, \' \' ORDER BY status) FROM index_mover_jobs'),
	'canceled failed interrupted moved paused rehearsed running skipped', 'jobs of every state');
my $pid = $holder->pid;
like($as_monitor->("SELECT severity, object, detail, command FROM index_mover_check('0 s') WHERE kind = 'waiting job'"),
	qr/^warning\|job $waiting\|waits_i has waited since .* for process $pid\|SELECT .*\.index_mover_blockers;$/,
	'a job that waits, and who is in the way');
is($as_monitor->("SELECT count(*) FROM index_mover_check('1 hour') WHERE kind = 'waiting job'"), '0', 'but not for an hour');

# ---------------------------------------------------------------------------
# The files
# ---------------------------------------------------------------------------
# By way of JSON, because Perl alone reads no YAML.
my $reads_yaml = system(q(python3 -c 'import yaml' 2> /dev/null)) == 0;
sub yaml
{
	my ($file) = @_;
	my $program = 'import sys, json, yaml; print(json.dumps(yaml.safe_load(open(sys.argv[1]))))';
	my ($json) = run_command([ 'python3', '-c', $program, "$deploy/$file" ]);
	return decode_json($json);
}

my %metrics;	# in the names of alerts and dashboard
my @queries;	# file, name, SQL, columns
my $dashboard = decode_json(slurp_file("$deploy/grafana.json"));
cmp_ok(scalar @{ $dashboard->{panels} }, '>=', 8, 'the dashboard has panels');
SKIP:
{
	skip 'Python has no yaml', 1 unless $reads_yaml;
	my $collector = yaml('sql_exporter.collector.yml');
	my %columns;
	foreach my $metric (@{ $collector->{metrics} })
	{
		my ($query, @values) = ($metric->{query_ref}, @{ $metric->{values} });
		push @{ $columns{$query} }, @{ $metric->{key_labels} || [] }, @values;
		is($metric->{metric_name}, "index_mover_${query}_$values[0]", "$metric->{metric_name} has the name of its column");
		$metrics{ $metric->{metric_name} } = 1;
	}
	push @queries, map { [ 'sql_exporter.collector.yml', @$_{qw(query_name query)}, $columns{ $_->{query_name} } ] }
	  @{ $collector->{queries} };
	my %others = map { $_->[1] => $_->[2] } @queries;
	foreach my $query (@{ yaml('prometheus-sql-exporter.yml')->{jobs}[0]{queries} })
	{
		push @queries, [ 'prometheus-sql-exporter.yml', @$query{qw(name query)}, [ map { @{ $_ || [] } } @$query{qw(labels values)} ] ];
		(my $name = $query->{name}) =~ s/^index_mover_//;
		is(delete $others{$name}, $query->{query}, "$query->{name}: the same in both exporters");
		ok($metrics{"$query->{name}_$_"}, "$query->{name}, $_: has the same name") foreach @{ $query->{values} };
	}
	is(join(' ', %others), '', 'both exporters have all queries');
	my $pgwatch = yaml('pgwatch.yaml');
	foreach my $name (sort keys %{ $pgwatch->{metrics} })
	{
		my ($statement) = values %{ $pgwatch->{metrics}{$name}{sqls} };
		my @named = $statement =~ /q\.\w+ AS (tag_\w+)|, q\.(\w+)(?= *[,\n])/g;
		push @queries, [ 'pgwatch.yaml', $name, $statement, [ 'epoch_ns', grep { defined } @named ] ];
		ok(exists $pgwatch->{presets}{index_mover}{metrics}{$name}, "pgwatch: $name is in the preset");
		ok($metrics{"${name}_$_"}, "pgwatch: $name, $_: has the same name") foreach grep { defined && !/^tag_/ } @named;
	}
	# what alerts and dashboard show is there
	my @alerts = map { @{ $_->{rules} } } @{ yaml('alerts.yml')->{groups} };
	my @expressions = ((map { [ "alert $_->{alert}", $_->{expr} ] } @alerts),
		map { my $p = $_; map { [ "panel \"$p->{title}\"", $_->{expr} ] } @{ $p->{targets} } } @{ $dashboard->{panels} });
	foreach my $expression (@expressions)
	{
		my @unknown = grep { !$metrics{$_} } $expression->[1] =~ /\b(index_mover_\w+)/g;
		is("@unknown", '', "$expression->[0]: knows its metrics");
	}
}
# Twins of what the queries call, as the owner of the database can have them, are run by no role that follows README.md.
my ($search_path) = slurp_file("$deploy/README.md") =~ /^(ALTER ROLE monitor SET search_path = .*;)$/m or die;
$sql->($search_path);
my $twin = "RETURNS %s LANGUAGE plpgsql AS 'BEGIN RAISE ''captured''; END'";
my @twins = (
	[ 'public.unnest(text[])', 'SETOF text' ], [ 'public.array_to_string(int[], text)', 'text' ],
	[ 'public.clock_timestamp()', 'timestamptz' ], [ 'public.now()', 'timestamptz' ]);
$sql->(sprintf "CREATE FUNCTION $_->[0] $twin", $_->[1]) foreach @twins;
$sql->('ALTER DATABASE postgres SET search_path = public, pg_catalog');
foreach my $query (@queries)
{
	my ($file, $name, $statement, $columns) = @$query;
	my ($rc, $out, $err) = $node->psql('postgres', $statement,
		extra_params => [ '-U', 'monitor', '-P', 'tuples_only=off', '-P', 'footer=off' ]);
	is($rc, 0, "$file, $name: runs as pg_monitor") or diag($err);
	my ($head, @lines) = split /\n/, $out;
	my %has = map { $_ => 1 } split /\|/, $head // '';
	is(join(' ', grep { !$has{$_} } @$columns), '', "$file, $name: has its columns");
	cmp_ok(scalar @lines, '>', 0, "$file, $name: has rows");
	unlike($out, qr/\|(\||$)/m, "$file, $name: no value is missing");
}

$sql->('ALTER DATABASE postgres RESET search_path');
$sql->("DROP FUNCTION $_->[0]") foreach @twins;

# ---------------------------------------------------------------------------
# The real ones
# ---------------------------------------------------------------------------
my @running;
my $last_log;
my $dir = PostgreSQL::Test::Utils::tempdir;
sub in_path
{
	my ($program) = @_;
	return grep { -x "$_/$program" } split /:/, $ENV{PATH};
}

sub run_server
{
	my (@command) = @_;
	$last_log = "$dir/$command[0].log";
	push @running, IPC::Run::start(\@command, '<', \undef, '>&', $last_log);
	return;
}

# Ask what was started last until it answers with something like this; returns the answer.
sub ask
{
	my ($url, $expected) = @_;
	my $answer = '';
	foreach (1 .. 600)
	{
		my $response = HTTP::Tiny->new(timeout => 10)->get($url);
		$answer = $response->{content};
		return $answer if $response->{success} && $answer =~ $expected;
		select(undef, undef, undef, 0.1);
	}
	diag(slurp_file($last_log));
	return $answer;
}

my $url = 'postgres://monitor:' . password_of($node, 'monitor') . '@127.0.0.1:' . $node->port . '/postgres?sslmode=disable';
my %port = map { $_ => PostgreSQL::Test::Cluster::get_free_port() } qw(debian exporter pgwatch prometheus);

SKIP:
{
	skip 'prometheus-sql-exporter is not installed', 1 unless in_path('prometheus-sql-exporter');
	my $config = slurp_file("$deploy/prometheus-sql-exporter.yml");
	$config =~ s{postgres://\S+}{$url} or die;
	$config =~ s{interval: \d+s}{interval: 1s} or die;
	append_to_file("$dir/debian.yml", $config);
	run_server('prometheus-sql-exporter', '-config.file', "$dir/debian.yml", '-web.listen-address', "127.0.0.1:$port{debian}");
	my $answer = ask("http://127.0.0.1:$port{debian}/metrics", qr/^sql_index_mover_problem\{.*^sql_index_mover_jobs/ms);
	like($answer, qr/^sql_index_mover_jobs\{col="count",.*status="failed".*\} 1$/m, 'prometheus-sql-exporter: the failed job');
	like($answer, qr/^sql_index_mover_blocked\{blocked_by="$pid",.*\} [\d.e+-]+$/m, 'prometheus-sql-exporter: who blocks');
	like($answer, qr/^sql_index_mover_problem\{.*kind="invalid index".*\} 1$/m, 'prometheus-sql-exporter: the leftover');
}

SKIP:
{
	skip 'sql_exporter is not installed', 1 unless in_path('sql_exporter');
	append_to_file("$dir/exporter.yml", <<YAML);
target:
  data_source_name: '$url'
  collectors: [index_mover]
collector_files: ['$deploy/sql_exporter.collector.yml']
YAML
	run_server('sql_exporter', '-config.file', "$dir/exporter.yml", '-web.listen-address', "127.0.0.1:$port{exporter}");
	my $answer = ask("http://127.0.0.1:$port{exporter}/metrics", qr/^index_mover_problem_present\{/m);
	like($answer, qr/^index_mover_jobs_count\{status="failed"\} 1$/m, 'sql_exporter: the failed job');
	like($answer, qr/^index_mover_blocked_seconds\{blocked_by="$pid",.*\} [\d.e+-]+$/m, 'sql_exporter: who blocks');
	like($answer, qr/^index_mover_problem_present\{.*kind="invalid index".*\} 1$/m, 'sql_exporter: the leftover');
	is(join(' ', grep { $answer !~ /^$_[{ ]/m } sort keys %metrics), '', 'sql_exporter: all metrics');
}

SKIP:
{
	skip 'pgwatch is not installed', 1 unless in_path('pgwatch');
	append_to_file("$dir/sources.yaml", <<YAML);
- name: monitored
  conn_str: $url
  kind: postgres
  is_enabled: true
  custom_metrics: {index_mover_jobs: 1, index_mover_move: 1, index_mover_blocked: 1, index_mover_day: 1, index_mover_problem: 1}
YAML
	run_server('pgwatch', "--sources=$dir/sources.yaml", "--metrics=$deploy/pgwatch.yaml",
		"--sink=prometheus://127.0.0.1:$port{pgwatch}", '--web-disable');
	my $answer = ask("http://127.0.0.1:$port{pgwatch}/metrics", qr/^pgwatch_index_mover_problem_present\{.*/m);
	like($answer, qr/^pgwatch_index_mover_jobs_count\{.*status="failed".*\} 1\b/m, 'pgwatch: the failed job');
	like($answer, qr/^pgwatch_index_mover_problem_present\{.*kind="invalid index".*\} 1\b/m, 'pgwatch: the leftover');
}

SKIP:
{
	skip 'promtool is not installed', 1 unless in_path('promtool');
	foreach my $case ([ 'rules', 'alerts.yml' ], [ 'config', 'prometheus.yml' ])
	{
		my ($out, $err) = run_command([ 'promtool', 'check', $case->[0], "$deploy/$case->[1]" ]);
		like($out, qr/SUCCESS/, "$case->[1]: promtool finds nothing") or diag("$out\n$err");
	}
}

SKIP:
{
	skip 'prometheus and prometheus-sql-exporter are not both installed', 1
	  unless in_path('prometheus') && in_path('prometheus-sql-exporter');
	my $config = slurp_file("$deploy/prometheus.yml");
	$config =~ s{localhost:9237}{127.0.0.1:$port{debian}} or die;
	$config =~ s{localhost:9399}{127.0.0.1:$port{exporter}} or die;
	$config =~ s{localhost:9188}{127.0.0.1:$port{pgwatch}} or die;
	append_to_file("$dir/prometheus.yml", "global: {scrape_interval: 1s, evaluation_interval: 1s}\n$config");
	# not after 30 minutes
	append_to_file("$dir/alerts.yml", slurp_file("$deploy/alerts.yml") =~ s/for: 30m/for: 1s/r =~ s/> 600/> 0/r);
	run_server('prometheus', "--config.file=$dir/prometheus.yml", "--storage.tsdb.path=$dir/tsdb",
		"--web.listen-address=127.0.0.1:$port{prometheus}");
	my $answer = ask("http://127.0.0.1:$port{prometheus}/api/v1/alerts",
		qr/(?=.*"IndexMoverJobWaits")(?=.*"IndexMoverLeftovers"(?:(?!"labels").)*"state":"firing")/s);
	# (each exporter has its own)
	my %state = map { $_->{labels}{alertname} => $_ }
	  sort { ($a->{state} eq 'firing') <=> ($b->{state} eq 'firing') } @{ decode_json($answer)->{data}{alerts} };
	is($state{IndexMoverLeftovers}{state}, 'firing', 'Prometheus: the alert of leftovers');
	like($state{IndexMoverJobWaits}{annotations}{summary}, qr/^job $waiting has waited for .* for process $pid /,
		'Prometheus: that of a job that waits says who blocks');
	ok(!exists $state{IndexMoverDataInDanger}, 'Prometheus: and no other') or diag($answer);
}

$_->kill_kill foreach @running;
$sql->('ALTER ROLE monitor RESET search_path');
$holder->run("PREPARE TRANSACTION 'p'");
poll_until($node, "SELECT blocked_by FROM index_mover_progress WHERE job = $waiting", '{0}', 'the wait for the prepared transaction');
# (between two attempts no session is named)
poll_until($node, "SELECT count(*) FROM index_mover_check('0 s') WHERE kind = 'waiting job' AND detail LIKE '% for %'", 1, 'a name');
like($as_monitor->("SELECT detail FROM index_mover_check('0 s') WHERE kind = 'waiting job'"),
	qr/^waits_i has waited since [^f]* for a prepared transaction$/, 'one that has no process');
# it waits no more, but has waited until now
$sql->("SELECT pause_move($waiting)");
poll_until($node, "SELECT blocked_by FROM index_mover_progress WHERE job = $waiting", '{}', 'the pause');
unlike($as_monitor->("SELECT detail FROM index_mover_check('0 s') WHERE kind = 'waiting job'"), qr/ for /, 'nor is there one any more');
$holder->run("ROLLBACK PREPARED 'p'");
$holder->end;
$sql->('SELECT cancel_move()');
wait_for_no_worker($node);
$sql->('SELECT * FROM index_mover_cleanup()');

# a cleanup that no call has asked for
my $gate = IndexMover::Session->new($node);
$gate->run('SELECT pg_advisory_lock(43)');
$sql->("SELECT move_indexes('behind_rebuild', 'regress_fast', 'rebuild', wait => false)");
poll_until($node, 'SELECT phase FROM index_mover_progress', 'building index', 'the build');
$gate->run('BEGIN; SELECT count(*) FROM behind_rebuild');
$sql->('SELECT pg_terminate_backend(pid) FROM index_mover_progress');
poll_until($node, 'SELECT job, blocked_by FROM index_mover_progress', '0|{' . $gate->pid . '}', 'the cleanup, which waits');
like($as_monitor->("SELECT object, detail FROM index_mover_check('0 s') WHERE kind = 'waiting job'"),
	qr/^cleanup\|behind_rebuild_i_ccnew has waited since /, 'a cleanup that waits has no number');
$gate->end;
wait_for_no_worker($node);
like($as_monitor->(sprintf $check, ''), qr/\A$ended(?:\n$ended)*\z/, 'in the end there are jobs that were not resumed');
$sql->('SELECT cancel_move(job) FROM index_mover_jobs');
is($as_monitor->(sprintf $check, ''), '', 'and acknowledged, all is well');

# A role that sees few jobs reads the newest in one half of a query, and the rest in another: a job that
# is committed between the two shifts neither.
$sql->('CREATE ROLE regress_reader LOGIN');
my $jobs_of_reader = "INSERT INTO index_mover.job_log (job, role, submitted_at, settings, undo_of, rehearse, freeze_first, status, "
	. "moved, total, size, size_done) SELECT g, 'regress_reader'::regrole, now(), '{}', 0, false, false, 'moved', 0, 0, 0, 0 "
	. "FROM generate_series(%s) g";
$sql->(sprintf $jobs_of_reader, '1001, 1100');
$gate = IndexMover::Session->new($node);
$gate->run('SELECT pg_advisory_lock(0, 5959)');
set_test_point($node, 'visible-jobs:2:wait');
my $reader = IndexMover::Session->new($node, user => 'regress_reader');
$reader->send('SELECT count(*), count(DISTINCT job), min(job), max(job) FROM index_mover_jobs');
poll_until($node, 'SELECT wait_event_type FROM pg_stat_activity WHERE pid = ' . $reader->pid, 'Extension', 'the second half of the query');
$sql->(sprintf $jobs_of_reader, '1101, 1102');
$gate->end;
is($reader->answer, '100|100|1001|1100', 'all jobs that were there when the query began, each once');
$reader->end;
set_tests($node);
$node->stop;
done_testing();
