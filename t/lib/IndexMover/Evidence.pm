# IndexMover::Evidence
#   A server with a tablespace whose device can be lost, what it has on record of the device
#   (src/README, "Evidence for a device"), and an older copy of a device.
#
#   my ($node, $location, $oid) = node_with_device('name', conf => ...);   # of tablespace fast
#   verdict_on_record($node, $oid);    # none, lost, unknown, or same
#   wait_until_watched($node);         # from now on it tells a crash
#   my $comes = copy_location($location);
#   $comes->();                        # the copy is in place of the location
#   is_void($path);                    # the first page of a hash index was replaced
package IndexMover::Evidence;

use strict;
use warnings;

use Exporter 'import';
use File::Path qw(make_path rmtree);
use IndexMover::Node;
use IndexMover::Wait;
use PostgreSQL::Test::Utils qw(slurp_file);

our @EXPORT = qw(node_with_device state_file known_on_record verdict_on_record wait_until_watched copy_location is_void);

# Return a server that has the library preloaded, no checkpoint by time, and a tablespace "fast"; the
# location of the tablespace; and its OID.  The options are those of new_node().
sub node_with_device
{
	my ($name, %options) = @_;
	my $location = PostgreSQL::Test::Utils::tempdir() . '/fast';
	make_path($location);
	my $conf = "shared_preload_libraries = 'index_mover'\ncheckpoint_timeout = 1h\n" . ($options{conf} // '');
	my $node = new_node($name, %options, conf => $conf);
	$node->safe_psql('postgres', "CREATE TABLESPACE fast LOCATION '$location'");
	return ($node, $location, $node->safe_psql('postgres', "SELECT oid FROM pg_tablespace WHERE spcname = 'fast'"));
}

sub state_file { return $_[0]->data_dir . '/index_mover.evidence'; }

# The numbers below which files of a tablespace are lost, unknown, and not vouched for; or nothing.
sub known_on_record
{
	my ($node, $oid) = @_;
	my $path = state_file($node);
	return () unless -e $path && slurp_file($path) =~ /^tablespace $oid \S+ \S+ \S+ (\d+) (\d+) (\d+) \d+ /m;
	return ($1, $2, $3);
}

sub verdict_on_record
{
	my ($lost, $unknown) = known_on_record(@_);
	return 'none' unless defined $lost;
	return $lost ? 'lost' : $unknown ? 'unknown' : 'same';
}

# Wait until all devices have been looked at since the start.
sub wait_until_watched
{
	my ($node) = @_;
	return wait_until('watched', sub { -e $node->data_dir . '/pg_snapshots/index_mover.running' });
}

# Copy a location, with its marker.  The result puts the copy in its place.
sub copy_location
{
	my ($location) = @_;
	system("cp -a '$location' '$location.copy'") == 0 or die;
	return sub {
		rename $location, "$location.away" or die $!;
		rename "$location.copy", $location or die $!;
		rmtree("$location.away");
		return;
	};
}

# Has a file a first page that is none of its access method?
sub is_void
{
	my ($path) = @_;
	return -s $path && unpack('x16 S', slurp_file($path)) == 8192;
}

1;
