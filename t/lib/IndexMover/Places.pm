# IndexMover::Places
#   In which tablespace an index lies, and which is the other one.  new_node() makes
#   two, regress_slow and regress_fast, and the tests move to and fro between them.
#
#   my $from = tablespace_of_index($node, 'i');     # 'regress_slow', say
#   my $to = other_place($from);                    # 'regress_fast'
#   my $to = elsewhere($node, 'i');                 # the same in one
#   arrived_ok($node, 't', 'i', $to, 'name');
#
# What is said is what the catalog says at that moment, without a lock: while a
# rebuild swaps names, it may be that of the one or the other index.
package IndexMover::Places;

use strict;
use warnings;

use Exporter 'import';
use IndexMover::Test;
use Test::More;

our @EXPORT = qw(other_place elsewhere arrived_ok);

sub other_place
{
	my ($place) = @_;
	return $place eq 'regress_slow' ? 'regress_fast' : 'regress_slow';
}

# Where an index is not.
sub elsewhere
{
	my ($node, $index, %options) = @_;
	return other_place(tablespace_of_index($node, $index, %options));
}

# The index of this table is where it should be, and right; a cleanup leaves
# nothing over, and no unknown file.  With standby => the standby of this
# server, not there either; with look_up => 1 the standby, too, is asked for every
# key (which it can only for a table's single index).  With metadata => 1 the catalogs
# say of it what they said at oracle.remember_metadata(), but for the scans, which a
# crash forgets.  With large, see verdict_ok().
sub arrived_ok
{
	my ($node, $table, $index, $place, $name, %options) = @_;
	is(tablespace_of_index($node, $index), $place, "$name: the index is in $place");
	$node->safe_psql('postgres', 'SELECT * FROM index_mover_cleanup()');
	wait_for_no_worker($node);
	leftovers_ok($node, $name, within => 5);
	files_ok($node, $name);
	metadata_ok($node, $table, $name, restarted => 1) if $options{metadata};
	verdict_ok($node, $table, $name, max_keys => faults() ? 300 : 100, large => $options{large});
	my $standby = $options{standby} or return;
	$node->wait_for_catchup($standby);
	files_ok($standby, "$name, standby");
	verdict_ok($standby, $table, "$name, standby", max_keys => 300) if $options{look_up};
	return;
}

1;
