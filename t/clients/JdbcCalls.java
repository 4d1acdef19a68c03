// Calls through JDBC, for t/073_clients_jdbc.pl: java JdbcCalls.java
//   INDEX_MOVER_URL in the environment is where it connects to.
//   Prints "what: outcome" in lines.
import java.sql.*;

public class JdbcCalls {
    static String url;

    static Connection connect(boolean autocommit) throws SQLException {
        Connection connection = DriverManager.getConnection(url);
        connection.setAutoCommit(autocommit);
        return connection;
    }

    // The first column of the first row, "done" without rows, or the SQLSTATE.
    static String call(Statement statement, String sql) {
        try {
            if (!statement.execute(sql))
                return "done";
            ResultSet rows = statement.getResultSet();
            return rows.next() ? rows.getString(1) : "none";
        } catch (SQLException e) {
            return e.getSQLState();
        }
    }

    static void tell(String what, Object outcome) {
        System.out.println(what + ": " + outcome);
    }

    public static void main(String[] arguments) throws Exception {
        url = System.getenv("INDEX_MOVER_URL");
        Connection own = connect(true);
        Statement statement = own.createStatement();
        tell("waiting", call(statement, "SELECT status FROM move_indexes('t', 'regress_fast', 'copy', "
            + "settings => '{\"progress_interval\": \"500ms\", \"max_rate\": \"2MB\"}')"));
        boolean noticed = false;
        for (SQLWarning w = statement.getWarnings(); w != null; w = w.getNextWarning())
            noticed |= w.getMessage().contains("t_v");
        tell("notices", noticed);

        Connection block = connect(false);
        tell("in a transaction", call(block.createStatement(), "SELECT status FROM move_indexes('t', 'regress_slow')"));
        block.rollback();
        String job = call(block.createStatement(),
            "SELECT job FROM move_indexes('t', 'regress_slow', 'copy', wait => false)");
        block.commit();
        tell("waiting for the job", call(statement, "CALL wait_for_move(" + job + ")"));
        tell("then", call(statement, "SELECT status FROM index_mover_history WHERE job = " + job));

        // a prepared statement, and a cancel from another thread
        PreparedStatement slow = own.prepareStatement("SELECT status FROM move_indexes(?::regclass, ?, 'copy', settings => ?::jsonb)");
        slow.setString(1, "t");
        slow.setString(2, "regress_fast");
        slow.setString(3, "{\"max_rate\": \"64kB\"}");
        Thread canceller = new Thread(() -> {
            try (Connection watch = connect(true)) {
                for (int i = 0; i < 600; i++) {
                    if (call(watch.createStatement(), "SELECT 1 FROM index_mover_progress WHERE blocks_done > 0").equals("1")) {
                        slow.cancel();
                        return;
                    }
                    Thread.sleep(100);
                }
            } catch (Exception e) {
                tell("problem", e);
            }
        });
        canceller.start();
        try {
            slow.executeQuery();
            tell("canceled", "no");
        } catch (SQLException e) {
            tell("canceled", e.getSQLState());
        }
        canceller.join();
        tell("after the cancel", call(statement, "SELECT status FROM index_mover_history ORDER BY job DESC LIMIT 1"));
    }
}
