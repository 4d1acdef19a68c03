# A ruin is never copied: an index whose file is missing, empty, or begins with what is
# no page of its access method is rebuilt by "auto", with the reason, and refused by
# "copy"; and a copy stops at a page that is damaged, and says which.
#
# Fault (storage): an index that is a ruin (missing, empty, zeros, a page of another kind at
#   its start), and damaged pages in the middle of one: rebuilt or refused, never copied
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

note has_sanitizer() ? 'with the sanitizers' : 'without sanitizers';

my $BLOCK = 8192;
my %node;
foreach my $checksums (0, 1)
{
	my $new = `pg_config --version` =~ /PostgreSQL (\d+)/ && $1 >= 18;
	$node{$checksums} = new_node("ruins_$checksums",
		extra => $checksums ? ['--data-checksums'] : $new ? ['--no-data-checksums'] : []);
	$node{$checksums}->safe_psql('postgres', <<'SQL');
CREATE TABLE d (id int, k int, a int[], p point, w text);
INSERT INTO d SELECT g, g % 300, ARRAY[g % 50, g % 1000], point(g * 7919::bigint % 100003, g), repeat(md5(g::text), 80)
  FROM generate_series(1, 5000) g;
CREATE UNIQUE INDEX d_btree ON d (id);
CREATE INDEX d_hash ON d USING hash (id);
CREATE INDEX d_gin ON d USING gin (a);
CREATE INDEX d_gist ON d USING gist (p);
CREATE INDEX d_spgist ON d USING spgist (p);
CREATE INDEX d_brin ON d USING brin (id) WITH (pages_per_range = 1);
CREATE TABLE toasted (i int, t text);
ALTER TABLE toasted ALTER t SET STORAGE EXTERNAL;
INSERT INTO toasted SELECT g, repeat('x', 5000) FROM generate_series(1, 300) g;
SQL
}

# The path of a relation's file; the server is stopped by then.
sub path
{
	my ($node, $relation) = @_;
	return $node->data_dir . '/' . $node->safe_psql('postgres', "SELECT pg_relation_filepath('$relation')");
}

sub blocks { return (-s $_[0]) / $BLOCK; }

sub overwrite
{
	my ($path, $offset, $bytes) = @_;
	open(my $fh, '+<:raw', $path) or die "$path: $!";
	seek($fh, $offset, 0);
	print $fh $bytes;
	close($fh) or die $!;
	return;
}

# What a device that came back empty, and the recovery after a crash, leave of a file.
my %ruin = (
	'missing' => sub { unlink $_[0] or die $!; },
	'empty' => sub { truncate $_[0], 0; },
	'a first page of zeros' => sub { overwrite($_[0], 0, "\0" x $BLOCK); },
	'nothing but the first page' => sub { truncate $_[0], $BLOCK; },
	'zeros behind the first page' => sub { overwrite($_[0], $BLOCK, "\0" x ((-s $_[0]) - $BLOCK)); },
	'a first page of a table' => sub { overwrite($_[0], 0, slurp_block($_[1])); });

sub slurp_block
{
	open(my $fh, '<:raw', $_[0]) or die $!;
	read($fh, my $block, $BLOCK);
	return $block;
}

my @methods = qw(btree hash gin gist spgist brin);
my $node = $node{0};
my $to = 'regress_fast';
foreach my $ruin (sort keys %ruin)
{
	# behind a root that is in the first page, a scan of GiST finds the damage
	my @ruined = grep { $_ ne 'gist' || $ruin !~ /first page$|behind/ } @methods;
	my %path = map { $_ => path($node, "d_$_") } @ruined;
	my $table = path($node, 'd');
	$node->stop;
	$ruin{$ruin}->($path{$_}, $table) foreach @ruined;
	$node->start;
	is($node->safe_psql('postgres',
		"SELECT string_agg(DISTINCT status || ' ' || sqlstate, ',') FROM move_indexes('d', '$to', 'copy', dry_run => true) WHERE name IN ("
			  . join(', ', map { "'d_$_'" } @ruined) . ')'),
		'skipped XX002', "$ruin: a plan by copy");
	my $plan = $node->safe_psql('postgres',
		"SELECT name || ': ' || method || ' ' || detail FROM move_indexes('d', '$to', dry_run => true) ORDER BY 1");
	my @rebuilt = $plan =~ /^d_(\w+): rebuild Rebuild, because copy cannot move it: [^.]+\./mg;
	is("@rebuilt", join(' ', sort @ruined), "$ruin: auto rebuilds") or diag($plan);
	note $plan;
	is($node->safe_psql('postgres', "SELECT count(*) FILTER (WHERE status = 'moved' AND method = 'rebuild') FROM move_indexes('d', '$to')"),
		scalar @ruined, "$ruin: moved by rebuild");
	verdict_ok($node, 'd', $ruin, max_keys => 100);
	$to = $to eq 'regress_fast' ? 'regress_slow' : 'regress_fast';
}

# ---- a page in the middle ------------------------------------------------------------------------
my %damage = (
	'special space' => [ 16, pack('S', 8000) ],
	'last bytes' => [ $BLOCK - 2, "\xFF\xFF" ],
	'pd_upper' => [ 14, "\xFF\xFF" ],
	'a bit of the contents' => [ $BLOCK - 500, undef ]);
foreach my $checksums (0, 1)
{
	$node = $node{$checksums};
	foreach my $damage (sort keys %damage)
	{
		next if $damage =~ /contents/ && !$checksums;
		my @damaged = grep { $_ ne 'brin' || $damage !~ /contents/ } 'd', map { "d_$_" } @methods;
		@damaged = grep { $_ ne 'd' } @damaged if $damage eq 'last bytes' && !$checksums;
		@damaged = picked { /btree|gin|d$/ } 'relations', @damaged if $checksums;
		my %path = map { $_ => path($node, $_) } @damaged;
		my %block = map { $_ => $_ eq "d_brin" ? blocks($path{$_}) - 1 : int(blocks($path{$_}) / 2) } @damaged;
		my %was;
		$node->stop;
		foreach my $relation (@damaged)
		{
			my ($at, $bytes) = @{ $damage{$damage} };
			open(my $fh, '+<:raw', $path{$relation}) or die $!;
			seek($fh, $block{$relation} * $BLOCK, 0);
			read($fh, $was{$relation}, $BLOCK);
			close $fh;
			$bytes //= chr(ord(substr($was{$relation}, $at, 1)) ^ 1);
			overwrite($path{$relation}, $block{$relation} * $BLOCK + $at, $bytes);
		}
		$node->start;
		foreach my $relation (@damaged)
		{
			my $call = $relation eq 'd' ? "move_table('d', 'regress_fast')" : "move_indexes('$relation', 'regress_fast', 'copy')";
			$call = $call =~ s/regress_fast/regress_slow/r
			  if $node->safe_psql('postgres',
			  	"SELECT count(*) FROM pg_class c JOIN pg_tablespace t ON t.oid = reltablespace WHERE c.oid = '$relation'::regclass AND "
			  		. "spcname = 'regress_fast'");
			my $row = $node->safe_psql('postgres', "SELECT status, sqlstate, detail FROM $call WHERE name = '$relation'");
			like($row, qr/^failed\|XX00[12]\|invalid page in block $block{$relation} of relation/,
				($checksums ? 'checksums, ' : '') . "$damage of $relation: the copy stops there, and says so");
		}
		$node->stop;
		overwrite($path{$_}, $block{$_} * $BLOCK, $was{$_}) foreach @damaged;
		$node->start;
		leftovers_ok($node, $damage);
	}
	verdict_ok($node, 'd', 'in the end', max_keys => 100);
}

# ---- tables --------------------------------------------------------------------------------------
$node = $node{0};
my ($toast) = $node->safe_psql('postgres', "SELECT reltoastrelid::regclass FROM pg_class WHERE oid = 'toasted'::regclass");
my $file = path($node, $toast);
$node->stop;
rename $file, "$file.away";
$node->start;
is($node->safe_psql('postgres', "SELECT DISTINCT status, sqlstate, detail FROM move_table('toasted', 'regress_fast')"),
	sprintf('skipped|XX001|The TOAST table "%s" cannot be copied: its file is missing.', $toast =~ s/.*\.//r),
	'a table whose TOAST table is missing');
$node->stop;
rename "$file.away", $file;
$file = path_of_table();
rename $file, "$file.away";
$node->start;
is($node->safe_psql('postgres', "SELECT DISTINCT status, sqlstate, detail FROM move_table('toasted', 'regress_fast')"),
	'skipped|XX001|It cannot be copied: its file is missing.', 'a table that is missing');
$node->stop;
rename "$file.away", $file;
$node->start;
is($node->safe_psql('postgres', "SELECT string_agg(DISTINCT status, ',') FROM move_table('toasted', 'regress_fast')"),
	'moved', 'and there again');

sub path_of_table
{
	$node->start;
	my $path = path($node, 'toasted');
	$node->stop;
	return $path;
}
files_ok($node, 'in the end');
no_finding_ok($_) foreach values %node;
$_->stop foreach values %node;
done_testing();
