# IndexMover::Fuzz
#   The fuzzer: worlds and calls that a seed draws, several sessions at once, and oracles.
#
#   fuzz(seconds => 300, seed => 1);
#
# A world lives for some rounds.  In each, sessions of several roles send what
# Fuzz/Calls.pm draws, and a disturber does what happens to servers; then all comes to rest,
# and Fuzz/Watch.pm looks.  The seed decides the world, and the sequence of statements of
# each session in each round; not how they meet.
#
# One process: all connections are read as answers come (Fuzz/Client.pm).  On a finding the
# world ends; its statements with times, the log, and a script to repeat it are written
# to the directory that is printed, and it is tried to make the script shorter.
package IndexMover::Fuzz;

use strict;
use warnings;

use Exporter 'import';
use File::Path ();
use File::Temp ();
use FindBin;
use IndexMover::Fuzz::Actions;
use IndexMover::Fuzz::Calls;
use IndexMover::Fuzz::Client;
use IndexMover::Fuzz::Plants;
use IndexMover::Fuzz::Random;
use IndexMover::Fuzz::Watch qw(%FATAL read_source scan_log check_answer lock_query check_locks check_idle check_rest check_rows
  check_indexes check_files check_leftovers definitions check_definitions check_views check_plan check_commands cpu_seconds);
use IndexMover::Fuzz::World qw(draw_world quote_name literal);
use IndexMover::Storage;
use IndexMover::Test;
use IO::Select;
use JSON::PP ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

our @EXPORT = qw(fuzz);

use constant { SESSIONS => 6, ROUNDS => 3, ROUND => 25, LOCK_LIMIT => 8, CANCEL_IDLE => 60, CANCEL_CPU => 10, SHORTEN_TRIALS => 14 };

my %weights = (
	owner => { call => 45, policy => 5, change => 26, change_recorder => 6, ddl => 11, read => 7 },
	superuser => { call => 60, policy => 8, ddl => 14, read => 18 },
	other => { call => 75, policy => 7, read => 18 });

# ---------------------------------------------------------------------------
# A world's servers
# ---------------------------------------------------------------------------
my $worlds = 0;

sub start_world
{
	my ($f, $seed) = @_;
	my $r = IndexMover::Fuzz::Random->new($seed, 'server');
	my $more = IndexMover::Fuzz::Random->new($seed, 'more settings');
	my $node = new_node('fuzz_' . ++$worlds, streaming => 1, start => 0, verify => 0, conf => <<CONF);
max_worker_processes = 24
max_connections = 60
max_prepared_transactions = 20
shared_buffers = @{[ $r->pick('4MB', '32MB') ]}
wal_keep_size = 256MB
max_wal_size = 256MB
log_line_prefix = '%m [%p] %b %a '
log_error_verbosity = verbose
lc_messages = C
deadlock_timeout = @{[ $r->pick('100ms', '1s') ]}
index_mover.verify = @{[ $r->pick('on', 'off') ]}
index_mover.min_free_space = 0
index_mover.max_rate = @{[ $r->pick(0, 0, "'2MB'", "'300kB'") ]}
index_mover.scheduler_databases = '@{[ $r->pick('', '*', 'fuzz') ]}'
index_mover.resumable_size = @{[ $r->pick('64kB', '1GB') ]}
@{[ $r->chance(60) ? "shared_preload_libraries = 'index_mover'" : '' ]}
index_mover.resume_at_start = @{[ $more->pick('off', 'on') ]}
index_mover.heal_at_start = @{[ $more->pick('off', 'on') ]}
@{[ $more->chance(30) ? 'wal_level = logical' : '' ]}
CONF
	my ($version) = $node->pg_version =~ /(\d+)/;
	my $device = device_directory() . "/primary_$worlds";
	mkdir $device or die "$device: $!";
	my $world = draw_world($seed, $version, $device);
	$node->append_conf('postgresql.conf', 'summarize_wal = on') if $node->pg_version >= 17;
	mend_calls();
	$node->start;
	$node->safe_psql('postgres', $world->{roles});
	foreach my $db (@IndexMover::Fuzz::World::DATABASES)
	{
		$node->safe_psql('postgres', 'CREATE DATABASE ' . quote_name($db));
		next if $db =~ /3/;
		setup_database($node, $db, extension => 0);
		$node->psql($db, $world->{database}, on_error_die => 1);
		$node->safe_psql('postgres', 'ALTER DATABASE ' . quote_name($db) . ' SET search_path = ' . quote_name($world->{extension_schema})
			. ', public, fz');
	}
	my $catalogs = IndexMover::Fuzz::Calls::read_catalogs($node, 'fuzz');
	my $w = { %$world, node => $node, catalogs => $catalogs, log_offset => 0, killed => {}, ledger => {}, told => {}, history => [],
		seen_locks => {},
		core_files => {},
		device => $device,
		servers => [$node],
		start => time };
	$w->{ours} = join '|',
		map { quotemeta } sort map { $_->{name} } grep { $_->{name} !~ /^(alive|running|problems)$/ } @{ $catalogs->{routines} };
	$w->{ours} = qr/\b(?:$w->{ours}|tier_policy|index_mover_\w+|relation_heat)\b/;
	$w->{admin} = IndexMover::Fuzz::Client->new(node => $node, db => 'fuzz', role => superuser(), name => 'admin');
	$w->{definitions} = definitions(asker($w, $w->{admin}));
	if ($r->chance(50) || $f->{with_standby})
	{
		$w->{standby} = make_standby($w);
		IndexMover::Fuzz::Actions::start_standby($w);
	}
	# who the sessions are
	my $s = IndexMover::Fuzz::Random->new($seed, 'sessions');
	foreach my $n (1 .. SESSIONS)
	{
		my $role = $n <= 3 ? $IndexMover::Fuzz::World::OWNERS[ $n - 1 ] : $n == 4 ? superuser()
			: $s->pick(@IndexMover::Fuzz::World::LOGINS, superuser());
		my $db = $n == 6 && $s->chance(50) ? 'fuzz2' : 'fuzz';
		$w->{sessions}{$n} = { number => $n, role => $role, db => $db };
	}
	IndexMover::Fuzz::Plants::plant($f->{plant}, $w, 'start') if $f->{plant};
	return $w;
}

# Where the locations of fz_device are: on another device, if there is one.
sub device_directory
{
	our $directory //= -w '/dev/shm' ? File::Temp::tempdir('index_mover_fuzz_XXXXXX', DIR => '/dev/shm', CLEANUP => 1)
	  : PostgreSQL::Test::Utils::tempdir();
	return $directory;
}

# A standby whose fz_device is in a directory of its own.
sub make_standby
{
	my ($w) = @_;
	my $node = $w->{node};
	my $device = device_directory() . "/standby_$worlds";
	my $backup = $node->backup_dir . '/world';
	mkdir $device or die "$device: $!";
	$node->run_log([ 'pg_basebackup', '-D', $backup, '-h', $node->host, '-p', $node->port, '-c', 'fast', '-X', 'stream', '--no-sync',
		"--tablespace-mapping=$w->{device}=$device" ]) or die 'pg_basebackup';
	# core's module does not like the link
	my ($oid) = map { m{(\d+)$} } grep { -l } glob("$backup/pg_tblspc/*");
	unlink "$backup/pg_tblspc/$oid" or die "pg_tblspc/$oid: $!";
	my $standby = PostgreSQL::Test::Cluster->new("fuzz_standby_$worlds");
	$standby->init_from_backup($node, 'world', has_streaming => 1);
	symlink($device, $standby->data_dir . "/pg_tblspc/$oid") or die "$device: $!";
	$standby->append_conf('postgresql.conf', "max_standby_streaming_delay = 2s\n");
	$w->{standby_device} = $device;
	push @{ $w->{servers} }, $standby;
	return $standby;
}

sub superuser { return scalar getpwuid($>); }

# Ask as a superuser; rows.  With $may_fail an error is returned as its fields.
sub asker
{
	my ($w, $client) = @_;
	return sub {
		my ($sql, $may_fail) = @_;
		my $answer = $client->run($sql, 240);
		# the server may have been on its way down
		for (my $try = 0; $answer && $answer->{lost} && $try < 3; $try++)
		{
			sleep 1;
			$answer = $client->run($sql, 240);
		}
		if (!$answer || $answer->{lost})
		{
			$client->end if !$answer;
			return { C => '08006', M => 'no answer to the fuzzer' } if $may_fail;
			die "no answer to: $sql\n";
		}
		if (my $error = $answer->{errors}[0])
		{
			return $error if $may_fail;
			die "$error->{C}: $error->{M} in: $sql\n";
		}
		return $answer->{rows};
	};
}

# ---------------------------------------------------------------------------
# A round
# ---------------------------------------------------------------------------

# Where a session's steps come from: drawn, or, when something is repeated, a script.
sub source_of_steps
{
	my ($f, $w, $round, $number) = @_;
	if (my $script = $f->{script})
	{
		my @steps = @{ $script->{$round}{$number} || [] };
		return sub { return shift @steps };
	}
	my $session = $w->{sessions}{$number} || { number => 0, role => superuser(), db => 'fuzz' };
	my $kind = (grep { $_ eq $session->{role} } @IndexMover::Fuzz::World::OWNERS) ? 'owner' : $session->{role} eq superuser()
		? 'superuser' : 'other';
	my $calls = IndexMover::Fuzz::Calls->new(seed => $w->{seed}, round => $round, %$session, kind => $kind, weights => $weights{$kind},
		world => $w,
		catalogs => $w->{catalogs});
	my $until = time + $f->{round};
	return sub {
		return if time > $until;
		my $step = $number ? $calls->next_step : $calls->disturb;
		push @{ $w->{steps}{$round}{$number} }, $step;
		return $step;
	};
}

sub note_down
{
	my ($w, $number, $sql, $outcome) = @_;
	push @{ $w->{history} }, sprintf "%9.3f  %s  %s  %s", time - $w->{start}, $number, $sql =~ s/\s+/ /gr, $outcome;
	return;
}

sub found
{
	my ($f, $w, @findings) = @_;
	foreach (@findings)
	{
		my ($oracle, $text) = @$_;
		note_down($w, '!', "FINDING $oracle", substr($text, 0, 200));
		push @{ $w->{findings} }, [ $oracle, $text ];
	}
	return;
}

sub lines_of { my ($rows) = @_; return join "\n", map { join '|', map { $_ // '' } @$_ } @$rows; }

sub run_round
{
	my ($f, $w, $round) = @_;
	my %state;
	foreach my $n (0 .. SESSIONS)
	{
		my $session = $w->{sessions}{$n} || { number => 0, role => superuser(), db => 'fuzz' };
		$state{$n} = { next => source_of_steps($f, $w, $round, $n), queue => ["SET statement_timeout = '20s'"], at => 0,
			client => IndexMover::Fuzz::Client->new(node => $w->{node}, db => $session->{db}, role => $session->{role}, name =>
				"fuzz $n") };
	}
	my $watch = IndexMover::Fuzz::Client->new(node => $w->{node}, db => 'fuzz', role => superuser(), name => 'watch');
	my ($watch_at, $watch_what) = (0, '');
	my $until = time + $f->{round} + 5;
	$w->{wake} = [];
	IndexMover::Fuzz::Plants::plant($f->{plant}, $w, 'round') if $f->{plant};

	while (time < $until)
	{
		my $busy = IO::Select->new(map { $_->{client}{busy} ? $_->{client}{socket} : () } values %state);
		$busy->add($watch->{socket}) if $watch->{busy};
		$busy->can_read(0.01);
		$_->{client}->read for grep { $_->{client}{busy} } values %state;
		$watch->read if $watch->{busy};
		# what was stopped goes on
		@{ $w->{wake} } = grep { $_->[0] > time || (kill('CONT', $_->[1]), 0)[1] } @{ $w->{wake} };

		my $all_done = 1;
		foreach my $n (sort keys %state)
		{
			my $s = $state{$n};
			my $client = $s->{client};
			if (my $answer = $client->take_answer)
			{
				if (defined $s->{sent})
				{
					my $outcome = $answer->{lost} ? 'connection lost' : @{ $answer->{errors} }
						? "$answer->{errors}[0]{C} $answer->{errors}[0]{M}" : @{ $answer->{rows} } . ' rows';
					note_down($w, $n, $s->{sent}, sprintf('-> %s, %.3f s', $outcome, time - $client->{sent_at}));
					$f->{counts}{ $answer->{lost} ? 'lost' : @{ $answer->{errors} } ? $answer->{errors}[0]{C} : 'ok' }++;
					$f->{statements}++;
					found($f, $w, check_answer($answer, $f->{source}, $s->{step}{call}));
					remember_commands($w, $answer);
					delete $s->{sent};
				}
				$s->{queue} = ["SET statement_timeout = '20s'"] if $client->{lost};
			}
			if ($client->{lost})
			{
				$s->{done} && next;
				$all_done = 0;
				$client->connect if time - $client->{tried_at} > 0.5;
				next;
			}
			$all_done = 0 if $client->{busy} || !$s->{done};
			next if $client->{busy} || time < $s->{at};
			if (!@{ $s->{queue} })
			{
				if ($client->{status} ne 'I') { $s->{queue} = ['ROLLBACK'] }
				elsif (!$s->{done})
				{
					my $step = $s->{next}->();
					if (!$step) { $s->{done} = 1; next }
					$s->{step} = $step;
					$s->{queue} = [ @{ $step->{statements} } ];
					$s->{at} = time + $step->{think};
					next;
				}
				else { next }
			}
			my $sql = shift @{ $s->{queue} };
			if ($sql =~ /^\\/)
			{
				my $what = eval { IndexMover::Fuzz::Actions::act($w, $sql) };
				note_down($w, $n, $sql, '-> ' . ($what // "failed: $@"));
				found($f, $w, [ 'hang', "$sql failed: $@" ]) unless defined $what;
				$f->{counts}{"action " . ($sql =~ /^\\(\w+)/)[0]}++ if $what;
				next;
			}
			$s->{sent} = $sql;
			$client->send($sql);
		}

		# the watcher
		if (my $answer = $watch->take_answer)
		{
			if (@{ $answer->{errors} } || $answer->{lost}) { }
			elsif ($watch_what eq 'locks') { found($f, $w, check_locks($answer->{rows}, $w->{seen_locks}, LOCK_LIMIT)) }
			elsif ($watch_what eq 'idle') { found($f, $w, check_idle($answer->{rows}, $w->{seen_idle} //= {})) }
			elsif ($watch_what eq 'ledger') { $w->{ledger}{ $_->[0] } = 1 for @{ $answer->{rows} } }
		}
		if ($watch->{lost}) { $watch->connect if time - $watch->{tried_at} > 1; $watch_what = ''; $w->{seen_locks} = {} }
		elsif (!$watch->{busy} && time > $watch_at)
		{
			$watch_at = time + 0.4;
			$watch_what = { locks => 'ledger', ledger => 'idle' }->{$watch_what} // 'locks';
			$watch->send($watch_what eq 'locks' ? lock_query($w->{catalogs}{schema}) : $watch_what eq 'idle'
				? 'SELECT * FROM oracle.idle_locks()' : 'SELECT relfilenumber FROM index_mover.ledger');
		}
		last if $all_done;
		last if @{ $w->{findings} || [] } && !$f->{plant};
	}
	kill 'CONT', $_->[1] for @{ $w->{wake} };
	mend_calls();
	$watch->end;
	come_to_rest($f, $w, \%state);
	return;
}

# Commands in what is told: details, hints, rows.
sub remember_commands
{
	my ($w, $answer) = @_;
	return if keys %{ $w->{told} } > 200;
	foreach my $text (map { ($_->{D}, $_->{H}) } @{ $answer->{errors} }, @{ $answer->{notices} })
	{
		next unless defined $text;
		$w->{told}{$_} = 1 for IndexMover::Fuzz::Watch::commands_in($text);
	}
	return;
}

# Each session that is busy is canceled, and must answer; then jobs end.
sub come_to_rest
{
	my ($f, $w, $state) = @_;
	my $admin = $w->{admin};
	my $up = $admin->wait_until_connected(180);
	return found($f, $w, [ 'hang', 'the server does not take connections for three minutes' ]) unless $up;
	my $ask = asker($w, $admin);
	my %cancel;
	foreach my $n (keys %$state)
	{
		my $client = $state->{$n}{client};
		next if $client->{lost} || !$client->{busy} || !$client->{pid};
		$cancel{$n} = [ time, cpu_seconds($client->{pid}) // 0 ];
		$ask->("SELECT pg_cancel_backend($client->{pid})", 1);
	}
	while (my @waiting = grep { $state->{$_}{client}{busy} } keys %cancel)
	{
		IO::Select->new(map { $state->{$_}{client}{socket} } @waiting)->can_read(0.5);
		foreach my $n (@waiting)
		{
			my $client = $state->{$n}{client};
			$client->read;
			next unless $client->{busy};
			my $cpu = (cpu_seconds($client->{pid}) // 0) - $cancel{$n}[1];
			my $seconds = time - $cancel{$n}[0];
			if ($cpu > CANCEL_CPU || $seconds > CANCEL_IDLE + $cpu * 10)
			{
				my $rows = $ask->("SELECT pid, backend_type, state, wait_event_type, wait_event, pg_blocking_pids(pid), left(query, 200)
					FROM pg_stat_activity WHERE state <> 'idle' OR backend_type LIKE 'index_mover%'", 1);
				my $sent = $state->{$n}{sent} // '';
				found($f, $w, [ 'cancel', "session $n (process $client->{pid}) has not answered a cancel for " . int($seconds)
					  . " s, $cpu s of CPU: $sent\n" . (ref $rows eq 'ARRAY' ? lines_of($rows) : '') ]);
				kill 'CONT', $client->{pid};
				kill 'KILL', $client->{pid};
				$w->{killed}{ $client->{pid} } = 1;
				$client->lose;
			}
		}
	}
	foreach my $n (sort keys %$state)
	{
		my $client = $state->{$n}{client};
		my $answer = $client->take_answer;
		if ($answer && defined $state->{$n}{sent})
		{
			note_down($w, $n, $state->{$n}{sent}, sprintf('-> at the end: %s', @{ $answer->{errors} }
				? "$answer->{errors}[0]{C} $answer->{errors}[0]{M}" : 'ok'));
			found($f, $w, check_answer($answer, $f->{source}, $state->{$n}{step}{call}));
		}
		$client->end;
	}
	$admin->wait_until_connected(180) or return found($f, $w, [ 'hang', 'the server does not take connections' ]);
	# what the settings were
	foreach my $gid (map { $_->[0] } @{ $ask->('SELECT gid FROM pg_prepared_xacts WHERE database = current_database()') })
	{
		$ask->('ROLLBACK PREPARED ' . literal($gid), 1);
	}
	$ask->("ALTER SYSTEM RESET ALL");
	$ask->("ALTER SYSTEM SET index_mover.scheduler_databases = ''");
	$ask->('SELECT pg_reload_conf()');
	# jobs end: policies would begin new ones
	my $schema = $w->{catalogs}{schema};
	foreach my $db ('fuzz', 'fuzz2')
	{
		my $client = $db eq 'fuzz' ? $admin : IndexMover::Fuzz::Client->new(node => $w->{node}, db => $db, role => superuser(), name =>
			'admin2');
		my $ask_db = asker($w, $client);
		$ask_db->("UPDATE $schema.tier_policy SET enabled = false WHERE enabled", 1);
		$ask_db->("SELECT $schema.cancel_move()", 1);
		$client->end if $db ne 'fuzz';
	}
	my $database = $ask->('SELECT oid FROM pg_database WHERE datname = current_database()')->[0][0];
	my $start = time;
	my $left;
	do
	{
		usleep(200_000);
		$ask->("SELECT $schema.cancel_move()", 1);
		$left = $ask->(<<'SQL', 1);
SELECT a.pid, a.backend_type, a.datname, a.state, a.wait_event_type, a.wait_event, pg_blocking_pids(a.pid), left(a.query, 100)
	FROM pg_stat_activity a
 WHERE a.backend_type LIKE 'index\_mover%' AND a.backend_type !~ 'scheduler|launcher'
UNION ALL SELECT NULL, 'job ' || job, NULL, 'alive', NULL, NULL, NULL, NULL FROM index_mover.alive()
SQL
		$left = [] if ref $left eq 'HASH';
		# one that is to go on after a restart
		push @$left, map { [ undef, $_ ] } glob $w->{node}->data_dir . "/index_mover.job.$database.*";
	} while (@$left && time - $start < 90);
	return found($f, $w, [ 'hang', "workers do not end after all jobs were canceled:\n" . lines_of($left) ]) if @$left;
	$ask->($_, 1) for @IndexMover::Fuzz::Calls::RESTORE;
	IndexMover::Fuzz::Plants::plant($f->{plant}, $w, 'rest') if $f->{plant};
	found($f, $w, check_rest($ask, 20));
	return;
}

# ---------------------------------------------------------------------------
# The checks after a round, and at the end of a world
# ---------------------------------------------------------------------------
sub look
{
	my ($f, $w, $round) = @_;
	my $ask = asker($w, $w->{admin});
	my $schema = $w->{catalogs}{schema};
	my $r = IndexMover::Fuzz::Random->new($w->{seed}, 'look', $round);
	IndexMover::Fuzz::Plants::plant($f->{plant}, $w, 'look') if $f->{plant};
	$ask->("RESET ALL; SET statement_timeout = '200s'");
	my $cleanup = $ask->("SELECT kind, object, tablespace, size, action FROM $schema.index_mover_cleanup()", 1);
	found($f, $w, [ 'file', "index_mover_cleanup(): $cleanup->{C}: $cleanup->{M}" ])
	  if ref $cleanup eq 'HASH' && $cleanup->{C} !~ /^(55P03|55006|57)/;
	my $had_crash = delete $w->{crashed};
	my @checks = (
		[ rows => sub { check_rows($ask, $w->{twins}) } ],
		[ files => sub { check_files($ask, $w->{ledger}, $had_crash, $w->{core_files}) } ],
		[ leftovers => sub { check_leftovers($ask, $schema, $w->{node}->data_dir) } ],
		[ definitions => sub { check_definitions($ask, $w->{definitions}) } ],
		[ indexes => sub { check_indexes($ask, $w->{twins}) } ],
		[ views => sub { check_views($ask, $schema) } ],
		[ plan => sub { check_plan($ask, $r, $schema, $f->{plant} && IndexMover::Fuzz::Plants::between($f->{plant}, $w)) } ],
		[ commands => sub { check_commands($ask, $schema, $w->{told}) } ],
		[ 'rows after them' => sub { check_rows($ask, $w->{twins}) } ]);
	foreach (@checks)
	{
		my ($name, $code) = @$_;
		my @findings = eval { $code->() };
		if ($@) { note_down($w, '-', "check of $name", "could not be done: $@"); $f->{counts}{"no check of $name"}++ }
		found($f, $w, @findings);
	}
	my $moves = $ask->("SELECT status || coalesce(' ' || sqlstate, ''), count(*) FROM $schema.index_mover_history GROUP BY 1", 1);
	$w->{moves} = { map { @$_ } @$moves } if ref $moves eq 'ARRAY';
	my ($offset, @findings) = scan_log($w->{node}->logfile, $w->{log_offset}, $f->{source}, $w->{killed}, $w->{ours});
	$w->{log_offset} = $offset;
	found($f, $w, @findings);
	return;
}

# The standby says the same; and where it is promoted, goes on.
sub look_at_standby
{
	my ($f, $w) = @_;
	my $standby = $w->{standby} or return;
	my $r = IndexMover::Fuzz::Random->new($w->{seed}, 'standby');
	eval { $w->{node}->wait_for_catchup($standby, 'replay', $w->{node}->lsn('insert')); 1 }
	  or return found($f, $w, [ 'standby', "it does not catch up: $@" ]);
	my $promote = $r->chance(60) || $f->{plant};
	$standby->promote if $promote;
	my $client = IndexMover::Fuzz::Client->new(node => $standby, db => 'fuzz', role => superuser(), name => 'admin');
	my $ask = asker($w, $client);
	IndexMover::Fuzz::Plants::plant($f->{plant}, $w, 'standby', $ask) if $f->{plant};
	eval {
		my $logged = $ask->("SELECT relname FROM pg_class WHERE relnamespace = 'fz'::regnamespace AND relpersistence = 'p'");
		my %readable = map { $_->[0] => 1 } @$logged;
		my @twins = grep { $promote || $readable{$_} } @{ $w->{twins} };
		found($f, $w, map { [ $_->[0], "on the standby: $_->[1]" ] } check_rows($ask, \@twins), check_indexes($ask, \@twins, !$promote));
		if ($promote)
		{
			my $schema = $w->{catalogs}{schema};
			$ask->("SELECT * FROM $schema.index_mover_cleanup()", 1);
			found($f, $w, map { [ $_->[0], "on the promoted standby: $_->[1]" ] } check_files($ask, $w->{ledger}, 1, {}));
			$ask->("SELECT * FROM $schema.move_table('fz.d1', 'fz_b', indexes => true)", 1);
			found($f, $w, map { [ $_->[0], "on the promoted standby: $_->[1]" ] } check_rows($ask, $w->{twins}), check_indexes($ask,
				$w->{twins}, 0));
		}
		1;
	} or note_down($w, '-', 'look at the standby', "could not be done: $@");
	$client->end;
	my ($offset, @findings) = scan_log($standby->logfile, 0, $f->{source}, {}, $w->{ours});
	found($f, $w, map { [ $_->[0], "on the standby: $_->[1]" ] } @findings);
	return if !$promote || @{ $w->{findings} || [] };
	# from here on it is the server
	$w->{node}->stop('immediate');
	$w->{admin}->end;
	@$w{qw(node standby device log_offset seen_locks crashed)} = ($standby, undef, $w->{standby_device}, $offset, {}, 1);
	$w->{admin} = IndexMover::Fuzz::Client->new(node => $standby, db => 'fuzz', role => superuser(), name => 'admin');
	note_down($w, '-', 'the standby is promoted', '');
	return 1;
}

# What the server knows of the device of fz_device is written down.
sub has_evidence
{
	my ($w, $oid) = @_;
	my $path = $w->{node}->data_dir . '/index_mover.evidence';
	return -e $path && PostgreSQL::Test::Utils::slurp_file($path) =~ /^tablespace $oid \S+ \S+ \S+ 0 0 /m;
}

# The device of a tablespace comes back empty; or it is away while the server starts, and comes
# back as it was.  Tables that were there are gone, or lack changes; indexes are healed, and what
# is in other tablespaces is as it was.
sub lose_device
{
	my ($f, $w) = @_;
	my $r = IndexMover::Fuzz::Random->new($w->{seed}, 'loss');
	my $loss = $r->weighted(none => 30, 'in place' => 20, empty => 15, crash => 20, away => 15);
	return if $loss eq 'none';
	my $ask = asker($w, $w->{admin});
	my $schema = $w->{catalogs}{schema};
	my $space = $loss eq 'in place' ? 'fz_lost' : 'fz_device';
	my $oid = $ask->("SELECT oid FROM pg_tablespace WHERE spcname = '$space'")->[0][0];
	$ask->("RESET ALL; SELECT * FROM $schema.move_indexes('fz.d$_', '$space')", 1) for $r->below(9), $r->below(9);
	# where nothing is written down, pages decide, and they lack nothing that a look could see
	$loss = 'away' if $loss eq 'crash' && !has_evidence($w, $oid);
	# which tables stay, as do their twins, which a superuser's call for a tablespace takes along
	my $elsewhere = $ask->(<<SQL);
SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'fz'::regnamespace AND c.relname ~ '^d[0-9]\$' AND c.relpersistence = 'p'
	AND NOT EXISTS (
		SELECT FROM (SELECT relid FROM pg_partition_tree(c.oid) UNION VALUES (c.oid), (('twin.' || c.relname)::regclass)
			UNION SELECT inhrelid FROM pg_inherits WHERE inhparent = c.oid) p
		  JOIN pg_class t ON t.oid = p.relid LEFT JOIN pg_class o ON o.oid = t.reltoastrelid
		 WHERE $oid IN (t.reltablespace, o.reltablespace))
SQL
	my @twins = map { $_->[0] } @$elsewhere;
	my $change = sub {
		$ask->("UPDATE fz.$_ SET k = k + 1 WHERE id % 3 = 0; UPDATE twin.$_ SET k = k + 1 WHERE id % 3 = 0", 1) for @twins;
	};
	$change->();
	$w->{node}->stop($loss eq 'crash' ? 'immediate' : $loss eq 'away' ? 'fast' : $r->pick('fast', 'immediate'));
	if ($loss eq 'in place') { File::Path::remove_tree($_) for glob($w->{node}->data_dir . "/pg_tblspc/$oid/PG_*/*") }
	elsif ($loss eq 'empty') { File::Path::remove_tree($w->{device}, { keep_root => 1 }) }
	else
	{
		rename($w->{device}, "$w->{device}.away") && mkdir($w->{device}, 0700) or die "$w->{device}: $!";
		$w->{node}->start;
		$change->();
		$ask->('CHECKPOINT', 1);
		$w->{node}->stop('fast');
		File::Path::remove_tree($w->{device});
		rename("$w->{device}.away", $w->{device}) or die "$w->{device}: $!";
	}
	$w->{node}->start;
	note_down($w, '-', "the device of $space: $loss", join(' ', @twins));
	my $call = "SELECT name, kind, status, sqlstate, detail FROM $schema.heal_tablespace('$space'"
		. ($loss eq 'empty' ? ', unmounted => true' : '') . ')';
	my $healed;
	# a job that goes on after the start keeps its relations from being healed until it ends
	foreach (1 .. 10)
	{
		$healed = $ask->($call, 1);
		return note_down($w, '-', 'heal_tablespace', "$healed->{C} $healed->{M}") if ref $healed eq 'HASH';
		note_down($w, '-', 'heal_tablespace', lines_of($healed));
		last unless grep { ($_->[3] // '') eq '55006' } @$healed;
		sleep 1;
	}
	return if grep { ($_->[3] // '') eq '55006' } @$healed;
	$f->{counts}{"device: $loss"}++;
	my %failed = map { $_->[0] => 1 } grep { ($_->[2] // '') ne 'moved' } @$healed;
	$ask->('RESET ALL');
	foreach my $table (@twins)
	{
		found($f, $w, map { [ $_->[0], "device: $loss: $_->[1]" ] } check_rows($ask, [$table]));
		next if keys %failed;
		my $verdict = $ask->("SELECT oracle.verdict('fz.$table', 30)", 1);
		next if ref $verdict eq 'HASH';
		found($f, $w, [ 'index', "device: $loss: fz.$table: $verdict->[0][0]" ]) if $verdict->[0][0] !~ /^\d+ right(, no keys)?$/;
	}
	my (undef, @findings) = scan_log($w->{node}->logfile, $w->{log_offset}, $f->{source}, $w->{killed}, $w->{ours});
	found($f, $w, map { [ $_->[0], "device: $loss: $_->[1]" ] } grep { $FATAL{ $_->[0] } } @findings);
	return;
}

sub end_world
{
	my ($w) = @_;
	$w->{admin}->end;
	foreach my $node (reverse @{ $w->{servers} })
	{
		eval { $node->stop('immediate', fail_ok => 1) };
		File::Path::remove_tree($node->data_dir) unless @{ $w->{findings} || [] };
		File::Path::remove_tree($node->backup_dir);
	}
	File::Path::remove_tree($_) for glob(device_directory() . '/*');
	return;
}

# A world from its beginning to its end, or to the first finding; returns it.
sub live
{
	my ($f, $seed, $until) = @_;
	my $w = start_world($f, $seed);
	my $done = eval {
		my $whole_round = sub {
			my ($round) = @_;
			run_round($f, $w, $round);
			look($f, $w, $round) unless grep { $_->[0] eq 'hang' } @{ $w->{findings} || [] };
			note_down($w, '-', "round $round ends", '');
		};
		foreach my $round (1 .. ROUNDS)
		{
			$whole_round->($round);
			last if @{ $w->{findings} || [] } || time > $until;
		}
		my $is_promoted = !@{ $w->{findings} || [] } && look_at_standby($f, $w);
		$whole_round->(ROUNDS + 1) if $is_promoted && !$f->{plant} && time < $until;
		lose_device($f, $w) unless @{ $w->{findings} || [] } || $f->{plant};
		1;
	};
	# (of a signal that is for us)
	die $@ if !$done && $@ =~ /^death by signal/;
	found($f, $w, [ 'fuzzer', "died: $@" ]) unless $done;
	if (!$done)
	{
		my (undef, @findings) = eval { scan_log($w->{node}->logfile, $w->{log_offset}, $f->{source}, $w->{killed}, $w->{ours}) };
		found($f, $w, @findings);
	}
	end_world($w);
	return $w;
}

# ---------------------------------------------------------------------------
# Findings
# ---------------------------------------------------------------------------

# Equal for findings of a kind: without numbers and names.
sub kind_of
{
	my ($finding) = @_;
	my ($oracle, $text) = @$finding;
	$text =~ s/^\d{4}-\d\d-\d\d.*?(ERROR|FATAL|LOG|WARNING|PANIC):/$1/;
	$text = substr($text, 0, 160);
	$text =~ s/\d+/N/g;
	return "$oracle: $text";
}

sub write_finding
{
	my ($f, $w) = @_;
	my $dir = "$f->{out}/seed_$w->{seed}";
	File::Path::make_path($dir);
	my $write = sub { my ($name, $text) = @_; open(my $fh, '>', "$dir/$name") or die "$dir/$name: $!"; print $fh $text; close $fh };
	$write->('findings', join("\n\n", map { "$_->[0]: $_->[1]" } @{ $w->{findings} }) . "\n");
	$write->('statements', join("\n", @{ $w->{history} }) . "\n");
	$write->('script.json', JSON::PP->new->canonical->pretty->encode({ seed => $w->{seed}, steps => $w->{steps} // $f->{script} }));
	$write->('world.sql', $w->{roles} . "\n" . $w->{database});
	system('cp', $w->{node}->logfile, "$dir/server.log");
	system('cp', $_->logfile, "$dir/" . $_->name . '.log') for grep { $_ != $w->{node} } @{ $w->{servers} };
	return $dir;
}

# Leave out sessions, then halves, quarters, ... of the steps, while a finding of the same
# oracle comes (delta debugging: A. Zeller, R. Hildebrandt, "Simplifying and isolating
# failure-inducing input", 2002).
sub shorten
{
	my ($f, $w, $dir) = @_;
	my $wanted = $w->{findings}[0][0];
	my $script = $w->{steps} // $f->{script};
	my $trials = 0;
	my $fails = sub {
		my ($try) = @_;
		return 0 if $trials++ >= SHORTEN_TRIALS || time > $f->{shorten_until};
		my $g = { %$f, script => $try, counts => {}, with_standby => @{ $w->{servers} } > 1 };
		my $again = live($g, $w->{seed}, time + 300);
		my $same = grep { $_->[0] eq $wanted } @{ $again->{findings} || [] };
		note "shortening: trial $trials: " . ($same ? 'the same finding' : 'no such finding');
		write_short($dir, $again) if $same;
		return $same;
	};
	my $without = sub {
		my ($steps, $session) = @_;
		my %new = map { $_ => { %{ $steps->{$_} } } } keys %$steps;
		delete $_->{$session} for values %new;
		return \%new;
	};
	return 'it did not come again with the same script' unless $fails->($script);
	foreach my $n (0 .. SESSIONS)
	{
		my $try = $without->($script, $n);
		$script = $try if $fails->($try);
	}
	for (my $parts = 2; $parts <= 8; $parts *= 2)
	{
		foreach my $part (0 .. $parts - 1)
		{
			my %try;
			foreach my $round (keys %$script)
			{
				foreach my $n (keys %{ $script->{$round} })
				{
					my @steps = @{ $script->{$round}{$n} };
					my ($from, $to) = (int(@steps * $part / $parts), int(@steps * ($part + 1) / $parts));
					splice @steps, $from, $to - $from;
					$try{$round}{$n} = \@steps;
				}
			}
			$script = \%try if $fails->(\%try);
		}
	}
	my $left = 0;
	foreach my $round (values %$script) { $left += @$_ for values %$round }
	open(my $fh, '>', "$dir/short.json") or die;
	print $fh JSON::PP->new->canonical->pretty->encode({ seed => $w->{seed}, steps => $script });
	return "$left steps are left (short.json)";
}

sub write_short
{
	my ($dir, $w) = @_;
	open(my $fh, '>', "$dir/short.statements") or die;
	print $fh join("\n", @{ $w->{history} }), "\n";
	close $fh;
	system('cp', $w->{node}->logfile, "$dir/short.log");
	return;
}

# ---------------------------------------------------------------------------
# All of it
# ---------------------------------------------------------------------------
sub fuzz
{
	my (%options) = @_;
	my $root = "$FindBin::RealBin/..";
	my $f = { round => $options{round} // ROUND, plant => $options{plant}, counts => {}, statements => 0, source => read_source($root),
		out => $options{out} // PostgreSQL::Test::Utils::tempdir(), with_standby => $options{standby} };
	$IndexMover::Fuzz::Actions::plain = $ENV{LD_PRELOAD} // '';
	$ENV{LD_PRELOAD} = join ':', preload_library('io_faults'), grep { defined && length } $ENV{LD_PRELOAD};
	my $start = time;
	my $until = $start + $options{seconds};
	my @seeds = @{ $options{seeds} || [] };
	my $seed = $options{seed};
	my (%kinds, $worlds_done);
	if ($options{script})
	{
		my $script = JSON::PP->new->decode(PostgreSQL::Test::Utils::slurp_file($options{script}));
		$f->{script} = $script->{steps};
		@seeds = ($script->{seed});
	}
	if ($f->{plant})
	{
		IndexMover::Fuzz::Plants::plant($f->{plant}, undef, 'source', $f->{source});
		$f->{with_standby} = 1 if $f->{plant} eq 'standby';
	}
	while (@seeds || !$options{seeds} && !$f->{script} && time < $until)
	{
		my $this = @seeds ? shift @seeds : $seed++;
		my $w = live($f, $this, $until);
		$worlds_done++;
		$f->{moves}{$_} += $w->{moves}{$_} for keys %{ $w->{moves} || {} };
		next unless @{ $w->{findings} || [] };
		my $dir = write_finding($f, $w);
		foreach my $finding (@{ $w->{findings} })
		{
			my $kind = kind_of($finding);
			next if $kinds{$kind}++;
			diag "seed $this, $finding->[0]: " . substr($finding->[1], 0, 1500);
		}
		diag sprintf("seed %s, after %.0f s: statements of all sessions, script, log: %s", $this, time - $start, $dir);
		my $is_fatal = grep { $FATAL{ $_->[0] } } @{ $w->{findings} };
		if ($f->{plant})
		{
			my ($oracle) = IndexMover::Fuzz::Plants::oracle_of($f->{plant});
			my $seen = grep { $_->[0] eq $oracle } @{ $w->{findings} };
			next unless $seen;
			return pass(sprintf 'planted: %s: found by the oracle "%s" after %.0f s', $f->{plant}, $oracle, time - $start);
		}
		if ($options{shorten})
		{
			$f->{shorten_until} = time + $options{shorten};
			diag 'shortened: ' . shorten($f, $w, $dir);
		}
		# where only the names of tests are kept, this is all that is known of it
		my $name = "seed $this: " . join '; ', map { "$_->[0]: " . substr($_->[1] =~ s/\s+/ /gr, 0, 300) } @{ $w->{findings} };
		if ($options{report_only} && !$is_fatal) { pass("to be looked at: $name") }
		else { fail($name) }
		last if $options{first};
	}
	return fail("planted: $f->{plant}: was not found in " . int(time - $start) . ' s') if $f->{plant};
	my $n = $f->{counts};
	my $calls = join ', ', map { "$_ $n->{$_}" } sort { $n->{$b} <=> $n->{$a} || $a cmp $b } keys %$n;
	note "outcomes: $calls";
	note 'moves: ', join ', ', map { "$_ $f->{moves}{$_}" } sort keys %{ $f->{moves} };
	pass(sprintf '%d worlds, %d statements, %.0f minutes', $worlds_done, $f->{statements}, (time - $start) / 60);
	return;
}

1;
