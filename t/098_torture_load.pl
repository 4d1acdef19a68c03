# Moves there and back under a load of every kind of write: HOT and other
# updates, inserts, deletes, upserts, savepoints that are rolled back, prepared
# transactions, reads by index compared with reads by scan, vacuum.  No client
# may fail, and at the end every index must be right.  After core's
# contrib/amcheck/t/002_cic.pl and 003_cic_2pc.pl.
#
# Fault (transactions): savepoints, many subtransactions, 10,000 rows rolled back, multixacts
#   (also 057, 099)
# Fault (transactions): HOT chains, pruning, VACUUM (also without index cleanup, and then with
#   it), FREEZE (also 057, 099)
# Fault (indexes): btree, hash, GIN, GiST, SP-GiST, BRIN, bloom (also 110, 030, 099)
# Fault (indexes): operator class parameters, collations, also non-deterministic (also 054)
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

needs_faults();

my $SECONDS = $ENV{INDEX_MOVER_LOAD_SECONDS} || 25;

my $node = new_node('load', conf => <<CONF);
max_prepared_transactions = 20
max_worker_processes = 16
shared_buffers = 64MB
CONF

for my $method ('rebuild', 'copy')
{
	my $table = "zoo_$method";
	make_zoo($node, $table, 2000);
	$node->safe_psql('postgres', "DROP INDEX ${table}_bloom") if $method eq 'copy';
	$node->safe_psql('postgres', <<SQL);
CREATE SEQUENCE ${table}_ids START 10000;
SELECT oracle.remember_keys('$table');
SELECT oracle.remember_metadata('$table');
SQL
	my $row = "g, g % 97, 'text ' || g % 1009, g, point(g % 71, g % 53), int4range(g, g + 10),
       ARRAY[g % 31, g % 7], to_tsvector('simple', 'w' || g % 211), jsonb_build_object('k', g % 101),
       CASE WHEN g % 3 = 0 THEN g % 50 END";
	# Two that upsert the same new key at once get an error from core if there is
	# a second unique index that ON CONFLICT does not name: so num is another value
	# each time.  Before 19 also if REINDEX CONCURRENTLY exchanges the index it
	# names (see its documentation): there, each client has keys of its own.
	my $upsert_row = $row =~ s/% 1009, g,/% 1009, nextval('${table}_ids'),/r;
	my $upsert_id = $method eq 'rebuild' ? '5 * random(0, 399) + :client_id + 1' : 'random(1, 2000)';
	my %scripts = (
		insert => "INSERT INTO $table SELECT $row FROM (SELECT nextval('${table}_ids')::int AS g) s;\n",
		update_hot => "\\set id random(1, 2000)\nUPDATE $table SET rng = rng WHERE id = :id;\n",
		update_key => "\\set id random(1, 2000)\n\\set n random(1, 1000)\nUPDATE $table SET grp = :n, txt = 'changed ' || :n, pt = "
			. "point(:n, :n), arr = ARRAY[:n], doc = to_tsvector('simple', 'c' || :n), js = jsonb_build_object('k', :n), maybe = :n % 50 "
				. "WHERE id = :id;\n",
		delete => "\\set id random(1, 2000)\nDELETE FROM $table WHERE id = :id;\n",
		upsert => "\\set id $upsert_id\nINSERT INTO $table SELECT $upsert_row FROM (SELECT :id::int AS g) s ON CONFLICT (id) DO UPDATE "
			. "SET grp = EXCLUDED.grp, txt = EXCLUDED.txt;\n",
		savepoint => "\\set id random(1, 2000)\nBEGIN;\nSAVEPOINT a;\nINSERT INTO $table SELECT $row FROM (SELECT "
			. "nextval('${table}_ids')::int AS g) s;\nUPDATE $table SET txt = 'rolled back' WHERE id = :id;\nROLLBACK TO a;\nUPDATE "
				. "$table SET grp = grp + 1 WHERE id = :id;\nCOMMIT;\n",
		prepared => "\\set id random(1, 2000)\nBEGIN;\nUPDATE $table SET txt = 'prepared' WHERE id = :id;\nPREPARE TRANSACTION "
			. "'p_:client_id';\nCOMMIT PREPARED 'p_:client_id';\n",
		rolled_back => "\\set id random(1, 2000)\nBEGIN;\nDELETE FROM $table WHERE id = :id;\nROLLBACK;\n",
		# one snapshot, two ways: a difference is a division by zero
		compare => "\\set n random(0, 96)\nBEGIN ISOLATION LEVEL REPEATABLE READ;\nSET LOCAL enable_seqscan = off;\nSELECT count(*) AS "
			. "by_index FROM $table WHERE grp = :n AND maybe IS NULL \\gset\nSET LOCAL enable_seqscan = on;\nSET LOCAL enable_indexscan "
				. "= off;\nSET LOCAL enable_indexonlyscan = off;\nSET LOCAL enable_bitmapscan = off;\nSELECT 1 / (count(*) = "
					. ":by_index)::int FROM $table WHERE grp = :n AND maybe IS NULL;\nCOMMIT;\n",
		vacuum => "SELECT pg_try_advisory_lock(43)::int AS got \\gset\n\\if :got\nVACUUM $table;\nSELECT "
			. "pg_advisory_unlock(43);\n\\endif\n",
	);
	my %weight = (insert => 20, update_hot => 30, update_key => 30, delete => 10, upsert => 15,
		savepoint => 10, prepared => 5, rolled_back => 5, compare => 5, vacuum => 1);
	my $dir = PostgreSQL::Test::Utils::tempdir();
	my @files;
	for my $name (sort keys %scripts)
	{
		append_to_file("$dir/$name", $scripts{$name});
		push @files, '-f', "$dir/$name\@$weight{$name}";
	}
	my ($out, $err) = ('', '');
	local $ENV{PGHOST} = $node->host;
	local $ENV{PGPORT} = $node->port;
	my $load = IPC::Run::start(
		[ 'pgbench', '-n', '-c', '5', '-j', '2', '-T', $SECONDS, '--max-tries=1', @files, 'postgres' ],
		'>', \$out, '2>', \$err);

	# There and back as often as the time allows, each index of the table.
	my $start = time;
	my ($moves, $rows, $there) = (0, 0, 1);
	while ($moves < 2 || time - $start < $SECONDS - 4)
	{
		my $target = $there ? 'regress_fast' : 'regress_slow';
		my ($rc, $result, $errors) = $node->psql('postgres',
			"SELECT name, status, sqlstate, detail FROM move_indexes('$table', '$target', method => '$method') WHERE status <> 'moved'");
		is("$rc $result", '0 ', "$method: round $moves, all indexes moved to $target") or diag $errors;
		$moves++;
		$there = !$there;
		$load->pump_nb;
	}
	$load->finish;
	is($load->result(0), 0, "$method: pgbench ends well") or diag $err;
	unlike($err, qr/ERROR|aborted/, "$method: no client had an error");
	like($out, qr/number of failed transactions: 0 /, "$method: no transaction failed");
	my ($transactions) = $out =~ /number of transactions actually processed: (\d+)/;
	cmp_ok($transactions, '>', 20 * $SECONDS, "$method: $transactions transactions meanwhile, $moves rounds");
	cmp_ok($moves, '>=', 2, "$method: there and back at least once");
	is($node->safe_psql('postgres', 'SELECT count(*) FROM pg_prepared_xacts'), '0', "$method: no prepared transaction is left");
	if ($method eq 'copy')
	{
		# the hard things did happen (block 0 is always copied again)
		my $changed = $node->safe_psql('postgres',
			"SELECT count(*) FILTER (WHERE blocks_recopied > 1) FROM index_mover_history WHERE table_name = '$table' AND method = 'copy'");
		cmp_ok($changed, '>', 0, "copy: blocks were changed while they were copied, in $changed moves of an index");
	}
	all_right($node, $table, "$method, at rest", max_keys => 500);
	$node->stop('immediate');
	$node->start;
	verdict_ok($node, $table, "$method, after a crash", max_keys => 200);
	files_ok($node, "$method, after a crash");
}
$node->stop;
done_testing();
