# A Citus cluster of three servers, coordinator and two workers, with the statements of
# docs/guide.md: from one session all shards of all nodes are moved, watched,
# canceled, resumed and undone, beside clients none of whose transactions fails; and no
# command of ours is sent on to other nodes.  Only where Citus is installed, or
# scripts/citus-for-tests can build it.  Run by "scripts/test --long", for it takes
# minutes.
#
# Fault (security): a Citus cluster of three servers: everything copied, canceled and resumed,
#   undone, rebuilt from one statement beside clients
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IndexMover::Places;
use IndexMover::Test;
use IPC::Run ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

needs_citus();

# ---- the cluster -----------------------------------------------------------------------
# (Citus has to be the first of the libraries, turns on SSL unless it is told otherwise, and
# hides shards from those who read pg_class on a node, which the oracles do.  Its nodes come
# to each other by TCP as any role, and have no passwords.)
my @nodes = map { new_node($_, extension => 0, verify => 0, trust_tcp => 1, conf => <<CONF) } 'coordinator', 'worker1', 'worker2';
shared_preload_libraries = 'citus, index_mover'
citus.node_conninfo = 'sslmode=disable'
citus.override_table_visibility = off
listen_addresses = '127.0.0.1'
max_connections = 200
max_worker_processes = 32
max_prepared_transactions = 200
index_mover.verify = on
CONF
my ($coordinator, @workers) = @nodes;
$_->safe_psql('postgres', 'CREATE EXTENSION citus') foreach @nodes;

sub sql { return $coordinator->safe_psql('postgres', $_[0]); }

sql(sprintf "SELECT citus_set_coordinator_host('127.0.0.1', %d)", $coordinator->port);
sql(sprintf "SELECT citus_add_node('127.0.0.1', %d)", $_->port) foreach @workers;
sql("SELECT citus_set_node_property('127.0.0.1', " . $coordinator->port . ', \'shouldhaveshards\', true)');
sql(<<'SQL');
CREATE EXTENSION index_mover CASCADE;
SET citus.shard_count = 12;
CREATE TABLE orders (customer int, id bigint, note text, amount int,
	CONSTRAINT orders_pkey PRIMARY KEY (customer, id) USING INDEX TABLESPACE regress_slow);
CREATE INDEX orders_note ON orders (note) TABLESPACE regress_slow;
CREATE INDEX orders_amount ON orders (amount) TABLESPACE regress_slow;
CREATE INDEX orders_hash ON orders USING hash (note) TABLESPACE regress_slow;
SELECT create_distributed_table('orders', 'customer');
INSERT INTO orders SELECT g % 1000, g, md5(g::text), g % 10007 FROM generate_series(1, 120000) g;
CREATE TABLE country (id int CONSTRAINT country_pkey PRIMARY KEY USING INDEX TABLESPACE regress_slow, name text);
SELECT create_reference_table('country');
INSERT INTO country SELECT g, 'country ' || g FROM generate_series(1, 2000) g;
SQL
is($_->safe_psql('postgres', q{SELECT count(*) FROM pg_extension WHERE extname = 'index_mover'}), 1,
	'CREATE EXTENSION on the coordinator reaches ' . $_->name) foreach @nodes;

# ---- what is asked of it ---------------------------------------------------------------
# One line of each node's answer; dies where it was an error, unless they are wanted.
sub on_all_nodes
{
	my ($query, %options) = @_;
	my $answer = sql("SELECT success, result FROM run_command_on_all_nodes(\$\$ $query \$\$)");
	die "on all nodes: $query: $answer" if !$options{errors} && $answer =~ /^f\|/m;
	return $answer;
}

# The indexes, of shards as well as the empty ones that the shards' take their places
# from, that are not in this tablespace; on each node with its own eyes.
my $ours = q{c.relkind = 'i' AND t.relname ~ '^(orders|country)(_\d+)?$'};
sub indexes
{
	my ($what, $where) = @_;
	return join "\n", map {
		$_->safe_psql('postgres', <<SQL)
SELECT $what FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_class t ON t.oid = i.indrelid
  LEFT JOIN pg_tablespace s ON s.oid = c.reltablespace
 WHERE $ours AND ($where) HAVING count(*) > 0
SQL
	} @nodes;
}

sub all_in
{
	my ($tablespace, $name) = @_;
	my $others = indexes("string_agg(c.relname || ' in ' || coalesce(s.spcname, 'pg_default'), ', ')",
		"coalesce(s.spcname, 'pg_default') <> '$tablespace'");
	$others =~ s/\n//g;
	is($others, '', "$name: every index of every node is in $tablespace");
	return;
}

# (docs/guide.md has these statements)
my $running = q{status IN ('queued', 'running', 'paused')};

sub move_all
{
	my ($tablespace, $options) = @_;
	return on_all_nodes(join ' UNION ALL ', "SELECT 'jobs ' || string_agg(job::text, ' ') FROM (" . join(' UNION ALL ',
			map { "SELECT max(job) AS job FROM move_schema_indexes('public', '$tablespace', name_like => '$_%', wait => false, $options)" }
			'orders', 'country') . ') m');
}

sub progress
{
	return sql(<<SQL);
SELECT n.nodeport, j.job, j.name, j.status, j.phase, j.blocks_done, j.blocks_total, j.blocked_by, j.sqlstate
  FROM run_command_on_all_nodes(\$\$
    SELECT coalesce(json_agg(h), '[]') FROM (
      SELECT job, name, h.status, p.phase, p.blocks_done, p.blocks_total, p.blocked_by, h.sqlstate
        FROM index_mover_history h LEFT JOIN index_mover_progress p USING (job, name)
       WHERE h.$running) h \$\$) r
  JOIN pg_dist_node n USING (nodeid)
 CROSS JOIN json_to_recordset(r.result::json) AS j(job bigint, name text, status text, phase text,
       blocks_done bigint, blocks_total bigint, blocked_by text, sqlstate text)
 WHERE r.success
SQL
}

sub wait_for_the_end
{
	my ($what) = @_;
	my $start = time;
	poll_until($_, "SELECT count(*) FROM index_mover_history WHERE $running", '0', $what) foreach @nodes;
	return time - $start;
}

# Of the last job of each table, on each node.
sub states
{
	return join "\n", map {
		$_->safe_psql('postgres', <<SQL)
SELECT string_agg(DISTINCT status || coalesce(' ' || sqlstate || ' ' || message, ''), ', ') FROM index_mover_history
 WHERE job > (SELECT max(job) FROM seen)
SQL
	} @nodes;
}

sub forget_jobs
{
	$_->safe_psql('postgres', <<'SQL') foreach @nodes;
SET citus.enable_ddl_propagation = off;
SET client_min_messages = warning;
CREATE TABLE IF NOT EXISTS seen (job bigint);
INSERT INTO seen SELECT coalesce(max(job), 0) FROM index_mover_history;
SQL
	return;
}

sub indexes_are_right
{
	my ($name) = @_;
	is(indexes('string_agg(c.relname, \', \')', 'NOT i.indisvalid') =~ s/\n//gr, '', "$name: no invalid index");
	foreach my $node (@nodes)
	{
		my $where = "$name, " . $node->name;
		leftovers_ok($node, $where, within => 5);
		files_ok($node, $where);
		my ($sums, $same, $checked) = (0, 0, 0);
		foreach my $table (split /\n/,
			$node->safe_psql('postgres', "SELECT relname FROM pg_class WHERE relkind = 'r' AND relname ~ '^(orders|country)_\\d+\$'"))
		{
			foreach my $column ($table =~ /^orders/ ? qw(customer note amount) : 'id')
			{
				my $sum = "SELECT count(*), coalesce(sum(hashtextextended(ctid::text || $column, 0)), 0) FROM $table WHERE $column IS "
					. "NOT NULL";
				my $scan = $node->safe_psql('postgres',
					"SET enable_indexscan = off; SET enable_indexonlyscan = off; SET enable_bitmapscan = off; $sum");
				my $index = $node->safe_psql('postgres', "SET enable_seqscan = off; SET enable_bitmapscan = off; $sum");
				$sums++;
				$same++ if $scan eq $index && $scan !~ /^0\|/;
			}
			$checked += $node->safe_psql('postgres',
				"SELECT count(oracle.structure(indexrelid)) FROM pg_index WHERE indrelid = '$table'::regclass");
		}
		ok($sums > 0 && $same == $sums, "$where: sums by index and by scan are the same ($same of $sums)");
		cmp_ok($checked, '>', 0, "$where: amcheck of $checked indexes");
	}
	return;
}

# ---- clients ---------------------------------------------------------------------------
my $script = "$PostgreSQL::Test::Utils::tmp_check/load.sql";
append_to_file($script, <<'SQL');
\set customer random(0, 999)
\set other random(0, 999)
\set id random(1, 120000)
\set new random(200000, 1000000000)
BEGIN;
UPDATE orders SET note = md5(note), amount = (amount + 1) % 10007 WHERE customer = :customer AND id % 7 = 3;
INSERT INTO orders VALUES (:other, :new, md5(:new::text), :new % 10007) ON CONFLICT DO NOTHING;
COMMIT;
DELETE FROM orders WHERE customer = :customer AND id = :id;
UPDATE country SET name = 'country ' || :id WHERE id = :id % 2000 + 1;
SELECT count(*) FROM orders WHERE amount = :id % 10007;
SQL

sub start_load
{
	my $load = { out => '' };
	$load->{harness} = IPC::Run::start(
		[ 'pgbench', '-n', '-c', 4, '-T', 900, '-R', 40, '--max-tries=1', '-f', $script,
			$coordinator->connstr('postgres') . ' application_name=load' ],
		'<', \undef, '>&', \$load->{out}, IPC::Run::timeout(1000));
	my $writes = 'SELECT count(*) FROM orders WHERE id >= 200000';
	my $before = sql($writes);
	poll_until($coordinator, "SELECT ($writes) <> $before", 't', 'the clients');
	return $load;
}

# pgbench says at its end only what it has done; when it is interrupted, nothing.
sub end_load
{
	my ($load, $name) = @_;
	$load->{harness}->pump_nb;
	ok($load->{harness}->pumpable, "$name: the clients are still at work");
	my $calls = sql(q{SELECT count(*) FROM pg_stat_activity WHERE application_name = 'load'});
	is($calls, 4, "$name: all of them");
	unlike($load->{out}, qr/error|aborted/i, "$name: and no transaction has failed");
	$load->{harness}->signal('TERM');
	$load->{harness}->finish;
	return;
}

# ---- copy of everything, from one statement; undo --------------------------------------
forget_jobs();
my $load = start_load();
note move_all('regress_fast', q{method => 'copy', settings => '{"max_rate": "1MB"}'});
note sprintf 'moved after %.1f s', wait_for_the_end('the copies');
like(states(), qr/^moved\nmoved\nmoved$/, 'copy: all moved');
all_in('regress_fast', 'copy');

on_all_nodes(<<'SQL');
SELECT count(*) FROM (SELECT DISTINCT job FROM index_mover_history WHERE job > (SELECT max(job) FROM seen)) m,
  undo_move(m.job, wait => false)
SQL
wait_for_the_end('undo');
all_in('regress_slow', 'undo');

# ---- cancel, resume -------------------------------------------------------------------
forget_jobs();
move_all('regress_fast', q{method => 'copy', settings => '{"max_rate": "64kB"}'});
poll_until($coordinator,
	"SELECT count(*) > 2 FROM run_command_on_all_nodes(\$\$ SELECT count(*) FROM index_mover_progress WHERE blocks_done > 0 \$\$) WHERE "
		. "result::int > 0",
	't', 'a copy on every node');
my $progress = progress();
like($progress, qr/^\d+\|\d+\|orders\w*\|running\|[^|]+\|\d+\|\d+\|/m, 'progress of the whole cluster in one query');
foreach my $node (@nodes)
{
	my $port = $node->port;
	like($progress, qr/^$port\|/m, 'there is something of ' . $node->name);
}
on_all_nodes('SELECT cancel_move()');
wait_for_the_end('the cancel');
like(states(), qr/^.*canceled.*\n.*canceled.*\n.*canceled.*$/, 'cancel: on every node');
like(indexes('count(*)', "s.spcname = 'regress_slow'"), qr/^\d+\n\d+\n\d+$/, 'cancel: every node has more to move');
on_all_nodes(q{SELECT count(resume_move(job))
  FROM (SELECT DISTINCT job FROM index_mover_history WHERE status IN ('canceled', 'interrupted')) u});
on_all_nodes("SELECT count(alter_move(job, 'max_rate', '0')) FROM (SELECT DISTINCT job FROM index_mover_history WHERE $running) u");
wait_for_the_end('what was resumed');
all_in('regress_fast', 'cancel and resume');
on_all_nodes('SELECT count(*) FROM index_mover_cleanup()');
end_load($load, 'copies');
indexes_are_right('copies');

# ---- rebuild of everything -------------------------------------------------------------
forget_jobs();
my $log = -s $coordinator->logfile;
$load = start_load();
move_all('regress_slow', "method => 'rebuild'");
note sprintf 'rebuilt after %.1f s', wait_for_the_end('the rebuilds');
like(states(), qr/^moved\nmoved\nmoved$/, 'rebuild: all moved');
all_in('regress_slow', 'rebuild');
end_load($load, 'rebuilds');
indexes_are_right('rebuilds');

# ---- the empty tables alone: nothing is sent on to their shards ------------------------
# (shards have other files after a rebuild)
my $shards = q{t.relname ~ '_\d+$'};
my $files = 'string_agg(c.relname || \' \' || c.relfilenode, \', \' ORDER BY c.relname)';
my $before = indexes($files, $shards);
foreach my $method ('rebuild', 'auto', 'copy')
{
	my $to = $method eq 'auto' ? 'regress_slow' : 'regress_fast';
	forget_jobs();
	on_all_nodes("SELECT max(job) FROM move_indexes('orders', '$to', method => '$method', wait => false)");
	wait_for_the_end('the empty ones');
	like(states(), qr/^moved\nmoved\nmoved$|skipped/, "empty tables by $method: moved") unless $method eq 'copy';
	is(indexes($files, $shards), $before, "empty tables by $method: no shard was touched");
}
unlike(slurp_file($_->logfile), qr/40P01|REINDEX .*CONCURRENTLY.*_\d{6}/, $_->name . ': no deadlock, and no REINDEX was sent')
	foreach @nodes;

# ---- a caller that waits ----------------------------------------------------------------
# Its session on the coordinator waits for itself, by way of Citus: the rebuild there
# would wait for its snapshot.
forget_jobs();
my $start = time;
my $rows = on_all_nodes(
	"SELECT string_agg(status || coalesce(' ' || sqlstate, ''), ', ') FROM move_indexes('orders', 'regress_slow', method => 'rebuild')");
my $took = time - $start;
note $rows;
is(scalar(() = $rows =~ /^t\|moved, moved, moved, moved$/mg), 2, 'a waiting call, rebuild: moved on the workers');
is(scalar(() = $rows =~ /^t\|failed 40P01, failed 40P01, failed 40P01, failed 40P01$/mg), 1,
	'a waiting call, rebuild: refused on the coordinator');
soon_ok($took, 15, 'a waiting call, rebuild: no hang');
is(on_all_nodes("SELECT count(*) FROM move_indexes('orders', 'regress_slow') WHERE status = 'moved'"), "t|4\nt|0\nt|0",
	'a waiting call, copy: the rest is moved');

my ($rc, $out, $err) = $coordinator->psql('postgres', "SELECT count(*) FROM move_indexes('orders', 'pg_default', dry_run => true)");
my $notice = joined(
	qr/NOTICE:  table "orders" is distributed by Citus, and its shards are not moved with it\nHINT:  To move the /m,
	qr/shards, too: (SELECT .*)$/m);
like($err, $notice, 'a call on one node: its user is told');
my ($hint) = $err =~ $notice;
forget_jobs();
is(scalar(() = sql($hint) =~ /\|t\|\d+$/mg), 3, 'what the hint says: a job on each node');
wait_for_the_end('what the hint says');
all_in('pg_default', 'what the hint says');

# It ends by Ctrl-C, and with the client where the server looks for that.
foreach my $case ([ 'INT', '0' ], [ 'KILL', '1s' ])
{
	my ($signal, $interval) = @$case;
	my $call = start_call($coordinator, "ends_by_$signal", qq{SET client_connection_check_interval = '$interval';
		SELECT * FROM run_command_on_all_nodes(\$\$ SELECT count(*) FROM move_schema_indexes('public', 'regress_fast',
		  name_like => 'orders%', method => 'copy', settings => '{"max_rate": "64kB"}') \$\$)});
	poll_until($_, 'SELECT count(*) > 0 FROM index_mover_progress WHERE blocks_done > 0', 't', 'a copy on ' . $_->name) foreach @nodes;
	$call->{harness}->signal($signal);
	soon_ok(wait_for_the_end("the end of jobs whose caller was ended by $signal"), 3, "the client is ended by $signal: so are the jobs");
	eval { finish_call($call) };
}

# ---- another role, and what it sees -------------------------------------------------------
sql('CREATE ROLE regress_app LOGIN');
sql('ALTER TABLE orders OWNER TO regress_app');
on_all_nodes('GRANT EXECUTE ON FUNCTION move_schema_indexes TO regress_app');
on_all_nodes('GRANT CREATE ON TABLESPACE regress_slow, regress_fast TO regress_app');
is($workers[0]->safe_psql('postgres', <<SQL, extra_params => [ '-U', 'regress_app' ]), "$_|" . ($_ eq 'on' ? 'f' : 't'),
SET citus.override_table_visibility = $_;
SELECT '$_', count(*) > 0 FROM index_mover_history WHERE name LIKE 'orders_note_1%' AND role <> 'regress_app';
SQL
	"the history of a shard for the table's owner, Citus's hiding $_")
  foreach 'on', 'off';
forget_jobs();
my $other = other_place(tablespace_of_index($coordinator, 'orders_note'));
sql("SET ROLE regress_app; " . <<SQL);
SELECT count(*) FROM run_command_on_all_nodes(\$\$ SELECT max(job)
  FROM move_schema_indexes('public', '$other', name_like => 'orders%', wait => false) \$\$) WHERE success
SQL
wait_for_the_end('the jobs of another role');
like(states(), qr/^moved\nmoved\nmoved$/, 'another role, the owner of the table: all moved');
is($workers[0]->safe_psql('postgres',
	"SET citus.override_table_visibility = $_; SELECT '$_', count(*) > 0 FROM index_report() WHERE index::text ~ '^orders_note_\\d+\$'"),
	"$_|" . ($_ eq 'on' ? 'f' : 't'), "index_report(), Citus's hiding $_")
  foreach 'on', 'off';
indexes_are_right('end');

$_->stop foreach @nodes;
done_testing();
