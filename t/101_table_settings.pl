# Moves of a table under each setting that decides what is in the WAL: the table is right
# after a crash, behind a checkpoint or not, although recovery meets records of a file
# that is gone.
#
# Fault (tables): checksums, logged hints, wal_level, full_page_writes, with a crash behind a
#   checkpoint or not
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Places;
use IndexMover::Tables;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

needs_test_points();

my ($version) = `pg_config --version` =~ /PostgreSQL (\d+)/;
my @no_checksums = $version >= 18 ? '--no-data-checksums' : ();

# wal_level, full_page_writes, wal_log_hints, data checksums
my %picked = map { $_ => 1 } 'minimal off off off', 'replica off off on', 'logical on on off';
foreach my $case (
	picked { $picked{"@$_"} } 'combinations of settings',
	map { my $wal = $_; map { my $pages = $_;
		map { my $hints = $_; map { [ $wal, $pages, $hints, $_ ] } qw(on off) } qw(on off) } qw(on off) } qw(minimal replica logical))
{
	my ($wal_level, $full_pages, $hints, $checksums) = @$case;
	my $name = "wal_level $wal_level, full_page_writes $full_pages, wal_log_hints $hints, checksums $checksums";
	my $node = new_node(join('_', 'settings', @$case), extra => $checksums eq 'on' ? ['--data-checksums'] : \@no_checksums, conf => <<CONF);
wal_level = $wal_level
full_page_writes = $full_pages
wal_log_hints = $hints
max_wal_senders = @{[ $wal_level eq 'minimal' ? 0 : 10 ]}
checkpoint_timeout = 1h
max_wal_size = 2GB
CONF
	is($node->safe_psql('postgres', 'SHOW data_checksums'), $checksums, "$name: so it is");
	make_table($node, 'heap', 800);
	my $changes = 0;
	my $n = 0;
	# a crash: before the old file is removed, behind it, and behind a checkpoint in the middle
	foreach my $point ('copy-half', 'swapped', '', 'checkpoint')
	{
		my $step = "$name, " . ($point || 'at the end');
		my ($from) = split / /, places_of_table($node, 'heap');
		my $to = other_place($from);
		$node->safe_psql('postgres', 'CHECKPOINT');
		# records of the old file, of which visibility bits are cleared
		change_table($node, 'heap', ++$changes);
		freeze_table($node, 'heap') if $changes % 2;
		change_table($node, 'heap', ++$changes);
		my $sql = "SELECT string_agg(DISTINCT status, ',') FROM (SELECT status FROM move_table('heap', '$to') "
			. "UNION ALL SELECT status FROM move_indexes('heap', '$to')) m";
		my $call = held_at($node, $point =~ /^copy-half|^swapped/ ? $point : 'copy-end', $sql);
		if ($point eq 'copy-half' || $point eq 'swapped')
		{
			$node->stop('immediate');
			finish_call($call);
			let_go($call);
			$node->start;
			is($node->safe_psql('postgres', 'SELECT count(*) FROM index_mover.ledger'), $point eq 'swapped' ? '3' : '1',
				"$step: what is left is on record");
			$node->safe_psql('postgres', 'SELECT * FROM index_mover_cleanup()');
			is(places_of_table($node, 'heap'), join(' ', ($point eq 'swapped' ? $to : $from) x 3), "$step: where it is");
		}
		else
		{
			change_table($node, 'heap', ++$changes);
			$node->safe_psql('postgres', 'CHECKPOINT') if $point;
			freeze_table($node, 'heap');
			change_table($node, 'heap', ++$changes);
			let_go($call);
			my ($rc, $out, $err) = finish_call($call);
			# (what a crash has left at the target is skipped)
			like($out, qr/^moved(?:,skipped)?$/, "$step: moved") or diag $err;
			change_table($node, 'heap', ++$changes);
			$node->stop('immediate');
			$node->start;
			is(places_of_table($node, 'heap'), "$to $to $to", "$step: where it is");
		}
		set_tests($node);
		table_ok($node, 'heap', $step);
		files_ok($node, $step);
		leftovers_ok($node, $step, within => 5);
		count_fault('immediate shutdown, copy of a table');
	}
	is($node->safe_psql('postgres', "SELECT count(*) FROM index_mover_history WHERE status = 'failed'"), '0', "$name: no move has failed");
	$node->stop;
	$node->clean_node;
}
done_testing();
