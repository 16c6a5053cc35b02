import java.time.Duration;
import java.util.Collection;
import java.util.Map;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.connect.mirror.MirrorClient;
import org.apache.kafka.connect.mirror.RemoteClusterUtils;

/**
 * What do MirrorMaker 2's own clients see on a cluster? Their answers, as one line of JSON.
 *
 * <p>Run as a single source file: java -cp JARS MirrorClientView.java BOOTSTRAP ALIAS [GROUP]. ALIAS is the other
 * cluster, GROUP a consumer group whose offsets there are translated. Without one nothing is: MM2's client would wait a
 * minute for a checkpoints topic that is not there, and fail.
 */
public class MirrorClientView {
    /** A client that gives up after this long would return what it has read by then, and tell nobody. */
    private static final Duration TIMEOUT = Duration.ofSeconds(60);

    public static void main(String[] arguments) throws Exception {
        Map<String, Object> settings = Map.of("bootstrap.servers", arguments[0]);
        String alias = arguments[1];

        // The calls that an application makes when it fails over.
        Map<TopicPartition, OffsetAndMetadata> translated = arguments.length < 3
                ? Map.of()
                : RemoteClusterUtils.translateOffsets(settings, alias, arguments[2], TIMEOUT);
        StringBuilder answer = new StringBuilder("{");
        add(answer, "upstreamClusters", names(RemoteClusterUtils.upstreamClusters(settings)));
        add(answer, "replicationHops", "" + RemoteClusterUtils.replicationHops(settings, alias));
        try (MirrorClient client = new MirrorClient(settings)) {
            add(answer, "remoteTopics", names(client.remoteTopics()));
            add(answer, "remoteTopicsOfAlias", names(client.remoteTopics(alias)));
            add(answer, "heartbeatTopics", names(client.heartbeatTopics()));
            add(answer, "checkpointTopics", names(client.checkpointTopics()));
        }
        String offsets = translated.entrySet().stream()
                .map(each -> "[" + text(each.getKey().topic()) + "," + each.getKey().partition() + ","
                        + each.getValue().offset() + "," + text(each.getValue().metadata()) + "]")
                .collect(Collectors.joining(","));
        add(answer, "translated", "[" + offsets + "]");
        System.out.println(answer.append('}'));
    }

    private static void add(StringBuilder answer, String name, String json) {
        answer.append(answer.length() == 1 ? "" : ",").append(text(name)).append(':').append(json);
    }

    private static String names(Collection<String> names) {
        return new TreeSet<>(names).stream().map(MirrorClientView::text).collect(Collectors.joining(",", "[", "]"));
    }

    private static String text(String characters) {
        StringBuilder quoted = new StringBuilder("\"");
        characters.chars().forEach(each -> quoted.append(
                each < ' ' || each == '"' || each == '\\' || each > '~'
                        ? String.format("\\u%04x", each)
                        : String.valueOf((char) each)));
        return quoted.append('"').toString();
    }
}
