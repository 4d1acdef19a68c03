# Everything at once, at random: moves there and back by each method, of every
# kind of index, under load, while workers, clients and servers are killed, moves
# are canceled and paused, definitions change and the standby restarts; then
# everything is checked.  scripts/torture runs it for as long as you like, with a
# new seed each time; here one round of it, and the seed is always the same, so that what
# a change breaks is seen by the change.  (What is random for longer is the fuzzer's.)
#
# Fault (processes): kills, crashes and restarts at random, under load
# Fault (replication): promotion after the random test
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/lib";
use IndexMover::Test;
use IndexMover::Torture;
use Test::More;

needs_faults() unless long();
torture(
	seconds => $ENV{INDEX_MOVER_TORTURE_SECONDS} || 40,
	round => $ENV{INDEX_MOVER_TORTURE_ROUND} || 40,
	seed => $ENV{INDEX_MOVER_TORTURE_SEED} || 15);
done_testing();
