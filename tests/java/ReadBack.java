import java.io.PrintWriter;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * What does Kafka's own client see in a topic? Every visible record, as one line of JSON.
 *
 * <p>Run as a single source file: java -cp JARS ReadBack.java BOOTSTRAP TOPIC OUTPUT. All bytes are base64, header names
 * too (of their UTF-8), so that nothing depends on how a terminal or a JSON writer escapes. Null stays null.
 */
public class ReadBack {
    private static final Duration TIMEOUT = Duration.ofSeconds(60);

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("isolation.level", "read_committed");
        settings.put("enable.auto.commit", "false");
        settings.put("key.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("value.deserializer", ByteArrayDeserializer.class.getName());
        String topic = arguments[1];
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings);
                PrintWriter out = new PrintWriter(Files.newBufferedWriter(Path.of(arguments[2])))) {
            List<TopicPartition> partitions = consumer.partitionsFor(topic).stream()
                    .map(info -> new TopicPartition(topic, info.partition()))
                    .toList();
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            // Under read_committed the end is the last stable offset: it may lie behind markers that no poll returns,
            // so the position is what tells when a partition is done.
            Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
            long deadline = System.nanoTime() + TIMEOUT.toNanos();
            while (partitions.stream().anyMatch(each -> consumer.position(each) < ends.get(each))) {
                if (System.nanoTime() > deadline) {
                    throw new IllegalStateException(topic + ": the ends " + ends + " were not reached");
                }
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                    out.println(json(record));
                }
            }
            if (out.checkError()) {
                throw new IllegalStateException(arguments[2] + " could not be written");
            }
        }
    }

    private static String json(ConsumerRecord<byte[], byte[]> record) {
        StringBuilder headers = new StringBuilder();
        for (Header header : record.headers()) {
            headers.append(headers.isEmpty() ? "" : ",")
                    .append('[')
                    .append(text(header.key().getBytes(StandardCharsets.UTF_8)))
                    .append(',')
                    .append(text(header.value()))
                    .append(']');
        }
        return "{\"partition\":" + record.partition() + ",\"offset\":" + record.offset() + ",\"timestamp\":"
                + record.timestamp() + ",\"type\":\"" + record.timestampType() + "\",\"key\":" + text(record.key())
                + ",\"value\":" + text(record.value()) + ",\"headers\":[" + headers + "]}";
    }

    private static String text(byte[] bytes) {
        return bytes == null ? "null" : '"' + Base64.getEncoder().encodeToString(bytes) + '"';
    }
}
