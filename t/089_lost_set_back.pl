# A device that is back at an earlier state: its files look whole, and lack what was changed since.
# The epoch in its marker tells, because it grows at each start, and with the time.
#
# Fault (storage): the volume of a tablespace is set back to a snapshot; its files are restored from
#   a copy, with its marker or, after a crash, without; the old device is put back after the server has run with a copy, or without it
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use File::Path qw(make_path rmtree);
use IndexMover::Evidence;
use IndexMover::Test;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

needs_test_points();

my $dir = PostgreSQL::Test::Utils::tempdir();
my ($node, $location, $oid) = node_with_device('set_back');
sub value { return $node->safe_psql('postgres', $_[0]); }

my $version = (map { m{([^/]+)$} } glob("$location/PG_*"))[0];
my $marker = "$location/index_mover.$version";

sub known { return known_on_record($node, $oid); }
sub verdict { return verdict_on_record($node, $oid); }

sub watched { return wait_until_watched($node); }
sub settled { return wait_until('settled', sub { verdict() eq 'same' }); }
sub epoch { return slurp_file($marker) =~ /^device \S+ (\d+)$/m ? $1 : die; }

wait_until('marked', sub { -e $marker && verdict() eq 'same' });
value(<<'SQL');
CREATE TABLE t (id int, v int);
INSERT INTO t SELECT g, g % 100 FROM generate_series(1, 5000) g;
CREATE UNIQUE INDEX t_id ON t (id) TABLESPACE fast;
CREATE INDEX t_gin ON t USING gin ((ARRAY[id, v])) TABLESPACE fast;
SQL

# What a snapshot of the volume has: the blocks of all files, which stay the same files.
my %blocks;
sub take_snapshot
{
	%blocks = map { $_ => slurp_file($_) } grep { -f $_ } glob("$location/$version/*/*");
	unlink "$dir/marker";
	link $marker, "$dir/marker" or die $!;
	return;
}

sub set_back
{
	foreach my $file (keys %blocks)
	{
		open my $handle, '+<:raw', $file or die "$file: $!";
		truncate $handle, 0;
		print $handle $blocks{$file};
		close $handle or die $!;
	}
	unlink $marker;
	link "$dir/marker", $marker or die $!;
	return;
}

# Another device is mounted, or none; with $directory, not an empty one.
sub unmount
{
	my ($directory) = @_;
	rename $location, "$location.away" or die $!;
	make_path(join '/', $location, $directory // ());
	return;
}

sub mount
{
	rmtree($location);
	rename "$location.away", $location or die $!;
	return;
}

# A crash, a start without the device, and a late mount.
sub away_in_a_crash
{
	$node->stop('immediate');
	unmount();
	$node->start;
	watched();
	$node->stop;
	mount();
	$node->start;
	watched();
	return;
}

sub write_some { return value('INSERT INTO t SELECT max(id) + 1, 7 FROM t'); }

# The right answers, and no duplicates, before and after heal_tablespace().
sub lost_ok
{
	my ($name) = @_;
	wait_until("$name: lost", sub { verdict() eq 'lost' });
	is(verdict(), 'lost', "$name: lost");
	is(value('SET enable_seqscan = off; SELECT count(*) FROM t WHERE id = (SELECT max(id) FROM t)'), 1, "$name: no old index is used");
	isnt($node->psql('postgres', 'INSERT INTO t SELECT max(id), 0 FROM t'), 0, "$name: no duplicate gets in");
	is(value("SELECT string_agg(status, ' ') FROM heal_tablespace('fast')"), 'moved moved', "$name: both indexes are healed");
	$node->restart;
	settled();
	watched();
	is(value('SET enable_seqscan = off; SELECT count(*) FROM t WHERE id = (SELECT max(id) FROM t)'), 1, "$name: the index is used again");
	return;
}

sub same_ok
{
	my ($name) = @_;
	settled();
	watched();
	is(value("SELECT count(*) FROM heal_tablespace('fast', dry_run => true)"), 0, "$name: nothing is to be healed");
	return;
}

# ---- the epoch -----------------------------------------------------------------------------------
watched();
my $before = epoch();
$node->restart;
watched();
is(epoch(), $before + 1, 'it grows at a start');
$node->stop('immediate');
$node->start;
watched();
is(epoch(), $before + 2, 'and after a crash');
value("ALTER SYSTEM SET index_mover.test_mutation = 'beat-ms:200'");
$node->restart;
watched();
$before = epoch();
wait_until('written again', sub { epoch() > $before });
ok(epoch() > $before, 'and with the time');
value('ALTER SYSTEM RESET index_mover.test_mutation');
$node->restart;
watched();
same_ok('the same device');

# ---- a snapshot ----------------------------------------------------------------------------------
foreach my $end ('fast', 'immediate')
{
	take_snapshot();
	$node->restart;
	watched();
	write_some();
	value('CHECKPOINT');
	$node->stop($end);
	set_back();
	$node->start;
	lost_ok("set back after a stop, $end");
}

# one that was taken while the server was stopped, and put back before it has started
$node->stop;
take_snapshot();
set_back();
$node->start;
same_ok('set back to the present state');

# ---- a copy of the files -------------------------------------------------------------------------
value('CHECKPOINT');
system("cp -a '$location' '$location.copy'") == 0 or die;
$node->restart;
watched();
write_some();
$node->stop;
rmtree($location);
rename "$location.copy", $location or die $!;
$node->start;
lost_ok('restored from an old copy');

# and one from before the server has gone on with another copy, whose number is another one
value('CHECKPOINT');
$node->stop;
system("cp -a '$location' '$location.copy'") == 0 or die;
rename $location, "$location.old" or die $!;
system("cp -a '$location.old' '$location'") == 0 or die;
rmtree("$location.old");
$node->start;
same_ok('restored from a copy of the present state');
write_some();
$node->stop;
rmtree($location);
rename "$location.copy", $location or die $!;
$node->start;
lost_ok('restored from an old copy, of another number');

# and one without its marker: after a crash nothing else tells.  Recovery needs nothing there.
value('CHECKPOINT');
system("cp -a '$location' '$location.copy' && rm '$location.copy'/index_mover.*") == 0 or die;
write_some();
value('CHECKPOINT');
$node->stop('immediate');
rmtree($location);
rename "$location.copy", $location or die $!;
$node->start;
is(value('SET enable_seqscan = off; SELECT count(*) FROM t WHERE id = (SELECT max(id) FROM t)'), 1,
	'an old copy without its marker: the first query is right');
lost_ok('restored from an old copy without its marker, after a crash');

# The marker is that of an earlier build, which named no directory; it stays the same file.
sub name_no_directory
{
	my $text = slurp_file($marker) =~ s/^beside .*\n//mr;
	open my $handle, '+<:raw', $marker or die $!;
	truncate $handle, 0;
	print $handle $text;
	close $handle or die $!;
	return;
}

# ---- the old device, after a copy of it was in use ------------------------------------------------
# A file that is damaged keeps the server from knowing the copy.
foreach my $end ('fast', 'immediate', 'earlier build')
{
	value('CREATE TABLE d (id int); CREATE INDEX d_id ON d (id) TABLESPACE fast');
	my $file = $node->data_dir . '/' . value("SELECT pg_relation_filepath('d_id')");
	value('CHECKPOINT');
	$node->stop;
	rename $location, "$location.old" or die $!;
	make_path($location);
	system("cp -a '$location.old'/PG_* '$location'") == 0 or die;
	truncate $file, 0;
	$node->start;
	watched();
	is(verdict(), 'unknown', "$end: a copy without the marker is not known");
	write_some();
	value('CHECKPOINT');
	$node->stop($end eq 'immediate' ? $end : 'fast');
	rmtree($location);
	rename "$location.old", $location or die $!;
	name_no_directory() if $end eq 'earlier build';
	$node->start;
	value('DROP TABLE d');
	lost_ok("the old device, after a copy was in use, $end");
}

# ---- a mount point that is empty -----------------------------------------------------------------
# Nothing can be changed there, however long the server runs.
value("ALTER SYSTEM SET index_mover.test_mutation = 'beat-ms:200'");
$node->restart;
watched();
write_some();
$node->stop;
unmount($version);
$node->start;
watched();
usleep(1_000_000);
$node->restart;
watched();
$node->stop;
mount();
$node->start;
wait_until('looked', sub { verdict() ne 'lost' });
is((known())[0], 0, 'an empty mount point for a while: nothing is lost');
same_ok('an empty mount point for a while');
value('ALTER SYSTEM RESET index_mover.test_mutation');
$node->restart;
watched();

# ---- a marker that cannot be written ---------------------------------------------------------------
# A copy in use that has none: the device that was expected is left behind.
{
	value('CHECKPOINT');
	$node->stop;
	rename $location, "$location.old" or die $!;
	system("cp -a '$location.old' '$location'") == 0 or die;
	chmod 0500, $location;
	$node->start;
	watched();
	like(value("SELECT detail FROM index_mover_check() WHERE kind = 'evidence missing'"), qr/could not be written/,
		'a location that cannot be written: index_mover_check() says so');
	write_some();
	$node->stop;
	chmod 0700, $location;
	rmtree($location);
	rename "$location.old", $location or die $!;
	$node->start;
	lost_ok('the old device, after a copy that could not be marked');
}

# One that could not be written again: what comes in an empty directory does not count.
{
	chmod 0500, $location;
	$node->restart;
	watched();
	my $missing = "SELECT count(*) FROM index_mover_check() WHERE kind = 'evidence missing'";
	is(value($missing), 1, 'a marker that cannot be written again: a row');
	chmod 0700, $location;
	is(value($missing), 0, 'now it can');
	chmod 0500, $location;
	$node->restart;
	watched();
	$node->stop;
	chmod 0700, $location;
	unmount($version);
	$node->start;
	watched();
	$node->stop;
	mount();
	$node->start;
	wait_until('looked', sub { verdict() ne 'none' });
	is((known())[0], 0, 'then an empty mount point for a while: nothing is lost');
	same_ok('then an empty mount point for a while');
}

# ---- only the marker ---------------------------------------------------------------------------------
rename $marker, "$dir/marker.away" or die $!;
value('SELECT count(*) FROM index_mover_check()');
$node->stop;
unlink $marker;
rename "$dir/marker.away", $marker or die $!;
$node->start;
is((known())[0], 0, 'a marker that is moved away, and back: nothing is lost');
same_ok('a marker that is moved away, and back');

# ---- a record that is set back -------------------------------------------------------------------------
my $record = state_file($node);
$node->stop;
unlink "$dir/record";
link $record, "$dir/record" or die $!;
$node->start;
watched();
$node->stop;
my $end = slurp_file($record) =~ /^(control .*)$/m ? $1 : die;
unlink $record;
link "$dir/record", $record or die $!;
{
	my $text = slurp_file($record);
	$text =~ s/^control .*$/$end/m;
	open my $handle, '+<:raw', $record or die "$record: $!";
	truncate $handle, 0;
	print $handle $text;
	close $handle or die $!;
}
$node->start;
lost_ok('a record that is set back, with a device that is not');

# ---- a directory that is copied back to where its old marker is ------------------------------------------
# Into a new directory; or into the old one, from which the marker was removed (guide.md)
make_path("$dir/elsewhere");
my $link = $node->data_dir . "/pg_tblspc/$oid";
sub link_to
{
	unlink $link or die $!;
	symlink $_[0], $link or die $!;
	return $node->start;
}
foreach my $back ("rm -r '$location'/PG_*", "rm '$location'/index_mover.*")
{
	$node->stop;
	system("rm -rf '$dir/elsewhere'/* && cp -a '$location'/PG_* '$dir/elsewhere'") == 0 or die;
	link_to("$dir/elsewhere");
	settled();
	watched();
	write_some();
	$node->stop;
	system("$back && cp -a '$dir/elsewhere'/PG_* '$location'") == 0 or die;
	link_to($location);
	is((known())[0], 0, "copied away and back, $back: nothing is lost");
	same_ok("copied away and back, $back");
}

# ---- a directory that is younger than the marker beside it -----------------------------------------
# (a file that is damaged keeps the round from writing the marker again)
value('CREATE TABLE d (id int); CREATE INDEX d_id ON d (id) TABLESPACE fast');
rmtree("$location/$version");
is(value("SELECT string_agg(DISTINCT status, ' ') FROM heal_tablespace('fast')"), 'moved', 'a directory that is made again');
value('CHECKPOINT');
truncate $node->data_dir . '/' . value("SELECT pg_relation_filepath('d_id')"), 0;
take_snapshot();
$node->restart;
watched();
write_some();
value('CHECKPOINT');
$node->stop;
set_back();
$node->start;
value('DROP TABLE d');
lost_ok('a directory that was made beside an older marker, set back');

# ---- unlogged relations --------------------------------------------------------------------------
# A crash empties the table, and not the index on a device that is away.
value(<<'SQL');
CREATE UNLOGGED TABLE u (id int);
INSERT INTO u SELECT generate_series(1, 1000);
CREATE INDEX u_id ON u (id) TABLESPACE fast;
CHECKPOINT;
SQL
write_some();
away_in_a_crash();
is(verdict(), 'lost', 'a device that was away in a crash: lost');
$node->psql('postgres', 'INSERT INTO u SELECT generate_series(2001, 3000)');
is(value('SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT count(*) FROM u WHERE id BETWEEN 1 AND 1000'), 0,
	'its unlogged index finds no rows that are gone');
is(value("SELECT string_agg(name || ' ' || status, ', ' ORDER BY name) FROM heal_tablespace('fast')"),
	't_gin moved, t_id moved, u_id moved', 'and is healed, as the others');
value('INSERT INTO u SELECT generate_series(2001, 3000)');
is(value('SET enable_seqscan = off; SELECT count(*) FROM u WHERE id IN (5, 2005)'), 1, 'its answers are right');

# The WAL needs nothing on the device: that does not help an unlogged index.
value('CHECKPOINT');
away_in_a_crash();
is(value("SELECT kind, object, detail FROM index_mover_check() WHERE kind = 'lost device'"),
	"lost device|fast|Recovery began while the tablespace's directory was empty.", 'an unlogged index alone: index_mover_check() says so');
$node->psql('postgres', 'INSERT INTO u SELECT generate_series(4001, 5000)');
is(value('SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT count(*) FROM u WHERE id BETWEEN 2001 AND 3000'), 0,
	'away in a crash that has changed nothing there: its unlogged index finds no rows that are gone');
is(value("SELECT string_agg(name || ' ' || status, ', ' ORDER BY name) FROM heal_tablespace('fast')"), 'u_id moved', 'and is healed');

# A recovery with the device empties both.
$node->stop('immediate');
$node->start;
watched();
is(value("SELECT count(*) FROM heal_tablespace('fast', dry_run => true)"), 0, 'a crash with the device: nothing is lost');
done_testing();
