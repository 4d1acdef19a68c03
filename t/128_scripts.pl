# What scripts/ do to the machine on which they run: no other user gets to their throw-away servers,
# a server that is there is not touched, and who names an installation gets that or an error.
#
# Fault (security): another user of the machine comes to a throw-away server
# Fault (processes): packages that are missing, and cannot be installed without a restart of a server
use strict;
use warnings;

use FindBin;
use File::Path 'make_path';
use IPC::Run ();
use PostgreSQL::Test::Utils;
use Test::More;

my $top = "$FindBin::RealBin/..";
plan skip_all => 'no directory scripts' unless -d "$top/scripts";
my $dir = PostgreSQL::Test::Utils::tempdir();
delete @ENV{'PG_MAJOR', 'PG_CONFIG'};

# Run commands after lib.sh; returns (exit status, output, errors).
sub run_bash
{
	my ($commands, %environment) = @_;
	local %ENV = (%ENV, HERE => $top, DIR => $dir, %environment);
	my ($out, $err);
	IPC::Run::run([ 'bash', '-c', $commands ], '<', \'', '>', \$out, '2>', \$err, IPC::Run::timeout(60));
	return ($? >> 8, $out, $err);
}
sub after_lib { my ($commands, @environment) = @_; return run_bash(qq(. "\$HERE/scripts/lib.sh"; $commands), @environment); }

sub make_file
{
	my ($path, $text, $mode) = @_;
	make_path($path =~ s{/[^/]*$}{}r);
	append_to_file($path, $text);
	chmod $mode // 0644, $path;
	return;
}

# ---- directories of servers ---------------------------------------------------------------------
my ($rc, $out, $err) = after_lib('server_directory "$DIR/server" && stat -c %a "$DIR/server"');
is($out, "700\n", 'a directory of a server is open to its user only') or diag $err;
is(join(' ', grep { slurp_file($_) =~ /^(?!\s*#).*chmod 755 .*\$dir\b/m } glob "$top/scripts/*"), '', 'and none is opened again');

# ---- the installation that is named ------------------------------------------------------------
($rc, $out, $err) = after_lib('find_pg_config; echo "found $PG_CONFIG"', PG_CONFIG => "$dir/nowhere/pg_config");
is("$rc $out", '2 ', 'a PG_CONFIG that is of no use is an error');
like($err, qr/PG_CONFIG, which is \Q$dir\E\/nowhere\/pg_config, has no server headers/, 'a PG_CONFIG that is of no use is named');

# ---- PostgreSQL among other programs -------------------------------------------------------------
my $usr = "$dir/usr";
make_file("$usr/bin/$_", "#!/bin/sh\n", 0755) foreach qw(pg_ctl postgres initdb psql createuser ls gcc);
make_file("$usr/$_", '') foreach qw(sbin/ls lib/pgsql/plpgsql.so lib/other.so share/pgsql/extension/plpgsql.control share/other
	include/stdio.h include/pgsql/server/postgres.h share/locale/de.mo);
make_file("$usr/bin/pg_config", <<"SH", 0755);
#!/bin/sh
case \$1 in
  --bindir) echo $usr/bin ;; --pkglibdir) echo $usr/lib/pgsql ;; --sharedir) echo $usr/share/pgsql ;;
  --includedir) echo $usr/include ;; --includedir-server) echo $usr/include/pgsql/server ;; --localedir) echo $usr/share/locale ;;
  --docdir) echo $usr/share/doc/pgsql ;;
esac
SH
($rc, $out, $err) = after_lib('private_postgres "$DIR/private"', PG_CONFIG => "$usr/bin/pg_config");
is($out, "$dir/private$usr/bin/pg_config\n", 'a private copy of PostgreSQL in /usr') or diag $err;
my @copied = sort map { s{^\Q$dir/private$usr\E/}{}r } split /\n/, `find $dir/private -type f`;
is("@copied", 'bin/createuser bin/initdb bin/pg_config bin/pg_ctl bin/postgres bin/psql lib/pgsql/plpgsql.so '
	. 'share/pgsql/extension/plpgsql.control', 'has its files, and no others');

# ---- setup --------------------------------------------------------------------------------------------
# The machine has version 77.1, without headers, and a cluster of it.
make_file("$dir/bin/pg_config", "#!/bin/sh\necho /nowhere\n", 0755);
make_file("$dir/bin/id", "#!/bin/sh\necho 0\n", 0755);
make_file("$dir/bin/dpkg-query", "#!/bin/sh\necho 77.1-1\n", 0755);
make_file("$dir/bin/pg_lsclusters", "#!/bin/sh\ncat \"\$DIR/clusters\"\n", 0755);
make_file("$dir/bin/apt-get", <<'SH', 0755);
#!/bin/sh
echo "$*" >> "$DIR/apt.log"
case " $* " in
  *" -s "*=*) cat "$DIR/simulated.same" ;;
  *" -s "*) cat "$DIR/simulated" ;;
esac
SH
# What scripts/setup does where the newest headers need packages, those of 77.1 need others (undef: are not to be had),
# and the cluster is in a state.
sub setup
{
	my ($simulated, $same, $state) = @_;
	unlink "$dir/apt.log", "$dir/simulated", "$dir/simulated.same", "$dir/clusters";
	append_to_file("$dir/simulated", $simulated);
	append_to_file("$dir/simulated.same", $same) if defined $same;
	append_to_file("$dir/clusters", "77 main 5432 $state postgres /var/lib/postgresql/77/main /var/log/77.log\n");
	my @answer = run_bash('"$HERE/scripts/setup" --build', PG_MAJOR => 77, PATH => "$dir/bin:$ENV{PATH}");
	return (@answer, slurp_file("$dir/apt.log"));
}
my $newest = "Inst postgresql-77 [77.1-1] (77.2-1 x)\nInst postgresql-server-dev-77 (77.2-1 x)\n";
foreach my $same (undef, $newest)
{
	my ($rc, $out, $err, $log) = setup($newest, $same, 'online');
	is($rc, 2, 'setup: headers that need a newer server than one that runs are an error');
	like($err, qr/cannot be installed without replacing postgresql-77, which would restart its servers/,
		'setup: headers that need a newer server: the error says so');
	unlike($log, qr/^(?!.* -s ).*\binstall\b/m, 'setup: headers that need a newer server: nothing is installed');
}
my $log = (setup($newest, "Inst postgresql-server-dev-77 (77.1-1 x)\n", 'online,recovery'))[3];
like($log, qr/^(?!.* -s ).*--no-upgrade install postgresql-server-dev-77=77\.1-1(?: |$)/m,
	'setup: a server that runs gets the headers of its own version');
$log = (setup($newest, undef, 'down'))[3];
like($log, qr/^(?!.* -s ).*--no-upgrade install postgresql-server-dev-77(?: |$)/m, 'setup: one that does not run is upgraded for them');
$log = (setup("Inst postgresql-server-dev-77 (77.2-1 x)\n", undef, 'online'))[3];
like($log, qr/^(?!.* -s ).*--no-upgrade install postgresql-server-dev-77(?: |$)/m, 'setup: else they are, and nothing is upgraded');
unlike($log, qr/ postgresql-77\b/, 'setup: no server is installed');
done_testing();
