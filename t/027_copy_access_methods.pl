# Access methods of others that log by generic WAL records: pgvector's hnsw and
# ivfflat.  auto copies their indexes; under inserts, updates, deletions and
# VACUUM, to and fro, each copy compared with the original block by block, and each
# row looked up afterwards: after crashes between copies and in the middle of one, too, and
# on a standby.
#
# Fault (indexes): pgvector's hnsw and ivfflat, under load and VACUUM, with crashes, and on a standby
#   (where these are installed)
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IPC::Run;
use IndexMover::Places;
use IndexMover::Session;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $ROUNDS = 6;

# Access method, its extension, the index, how the planner shall look, and a query for
# the IDs of the rows i that the index does not lead to, or does not lead to alone.
my @methods = (
	[ 'hnsw', 'vector', 'USING hnsw (e vector_l2_ops) WITH (m = 8)', 'SET hnsw.ef_search = 400',
		'(SELECT j.id FROM items j ORDER BY j.e <-> i.e LIMIT 1) IS DISTINCT FROM i.id' ],
	[ 'ivfflat', 'vector', 'USING ivfflat (e vector_l2_ops) WITH (lists = 20)', 'SET ivfflat.probes = 20',
		'(SELECT j.id FROM items j ORDER BY j.e <-> i.e LIMIT 1) IS DISTINCT FROM i.id' ]);

my $node = new_node('others', streaming => 1, conf => "wal_keep_size = 1GB\n");
my %there = map { $_ => 1 } split /\n/, $node->safe_psql('postgres', 'SELECT name FROM pg_available_extensions');
if (!grep { $there{ $_->[1] } } @methods)
{
	$node->stop;
	plan skip_all => 'pgvector is not installed';
}

$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;

my $dir = PostgreSQL::Test::Utils::tempdir();
append_to_file("$dir/change.sql", <<'SQL');
\set id random(1, 2000)
\set gone random(1, 20000)
SELECT change(:id, nextval('number')::int);
DELETE FROM items WHERE id = :gone;
SQL

foreach my $case (@methods)
{
	my ($method, $extension, $definition, $set, $wrong) = @$case;
  SKIP:
	{
		skip "$extension is not installed", 1 unless $there{$extension};
		$node->safe_psql('postgres', <<SQL);
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS $extension;
DROP TABLE IF EXISTS items;
DROP SEQUENCE IF EXISTS number;
DROP FUNCTION IF EXISTS thing, change;
CREATE SEQUENCE number START 100000;
CREATE TABLE items (id int PRIMARY KEY, n int, e vector(8)) WITH (fillfactor = 80);
-- what belongs to a number: a point that no other has
CREATE FUNCTION thing(n int) RETURNS vector LANGUAGE sql AS
\$\$ SELECT array_agg(('x' || substr(md5(n || ' ' || k), 1, 6))::bit(24)::int % 10007)::vector FROM generate_series(1, 8) k \$\$;
CREATE FUNCTION change(id int, n int) RETURNS void LANGUAGE sql AS
\$\$ INSERT INTO items VALUES (id, n, thing(n))
	ON CONFLICT (id) DO UPDATE SET (n, e) = (excluded.n, excluded.e) \$\$;
INSERT INTO items SELECT g, g, thing(g) FROM generate_series(1, 1500) g;
CREATE INDEX items_i ON items $definition TABLESPACE regress_slow;
SELECT oracle.remember_metadata('items');
SQL
		is($node->safe_psql('postgres', "SELECT method FROM move_indexes('items_i', 'regress_fast', dry_run => true)"), 'copy',
			"$method: auto copies");

		my $load = IPC::Run::start([ 'pgbench', '-n', '-c', '2', '-R', 60, '-T', 3600, '-f', "$dir/change.sql",
			$node->connstr('postgres') ],
			'>', \my $out, '2>', \my $err);
		my $vacuum = IndexMover::Session->new($node);
		my $number = 'SELECT last_value FROM number';
		foreach my $round (1 .. $ROUNDS)
		{
			$vacuum->send('VACUUM (INDEX_CLEANUP on) items');
			foreach my $way ('away', 'back')
			{
				my $before = $node->safe_psql('postgres', $number);
				is( $node->safe_psql('postgres',
						"SELECT method, status, detail FROM move_indexes('items_i', '@{[ elsewhere($node, 'items_i') ]}') WHERE (method, "
							. "status) <> ('copy', 'moved')"),
					'', "$method, round $round: copied, $way");
				poll_until($node, "SELECT last_value > $before + 20 FROM number", 't', 'changes');
			}
			$vacuum->answer;
		}
		$vacuum->end;
		$load->signal('TERM');
		$load->finish;
		poll_until($node, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgbench'", '0', 'the end of the load');
		unlike($err, qr/ERROR|aborted/, "$method: no change has failed");

		# a crash right after a move, before a checkpoint, and one in the middle of a copy
		is($node->safe_psql('postgres', "SELECT status FROM move_indexes('items_i', '@{[ elsewhere($node, 'items_i') ]}')"), 'moved',
			"$method: moved before a crash");
		my $place = elsewhere($node, 'items_i');
		$node->stop('immediate');
		$node->start;
		is(elsewhere($node, 'items_i'), $place, "$method: after the crash it is where it was moved to");
		my $job = $node->safe_psql('postgres',
			"SELECT job FROM move_indexes('items_i', '$place', wait => false, settings => '{\"max_rate\": \"16kB\"}')");
		poll_until($node, "SELECT blocks_done > 0 FROM index_mover_progress WHERE job = $job", 't', "$method: a copy has begun");
		$node->stop('immediate');
		$node->start;
		is(elsewhere($node, 'items_i'), $place, "$method: after a crash in mid-copy it is where it was");
		$node->safe_psql('postgres', 'SELECT count(*) FROM index_mover_cleanup()');

		my $seen = "SET enable_seqscan = off; SET enable_sort = off; $set;";
		like($node->safe_psql('postgres', "$seen EXPLAIN SELECT i.id FROM items i WHERE $wrong"),
			qr/ items_i on items j|Bitmap Index Scan on items_i/, "$method: the index is asked");
		my $rows = $node->safe_psql('postgres', 'SELECT count(*) FROM items');
		cmp_ok($rows, '>', 500, "$method: there are rows ($rows)");
		is($node->safe_psql('postgres', "$seen SELECT i.id FROM items i WHERE $wrong"), '', "$method: every row is found, and no other");
		$node->wait_for_catchup($standby);
		is($standby->safe_psql('postgres', "$seen SELECT count(*) FROM items; SELECT i.id FROM items i WHERE $wrong"), $rows,
			"$method: and so on a standby");
		is($node->safe_psql('postgres',
			"SELECT sum(blocks_recopied) > 0 FROM index_mover_history WHERE name = 'items_i' AND table_name = 'items'"),
			't', "$method: blocks have changed in mid-copy");
		leftovers_ok($node, $method);
		files_ok($node, $method);
		metadata_ok($node, 'items', $method);
	}
}

$standby->stop;
$node->stop;
done_testing();
