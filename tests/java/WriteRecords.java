import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Writes records as Kafka's own producer puts them into batches.
 *
 * <p>Run as: java -cp JARS WriteRecords BOOTSTRAP TOPIC SCRIPT. Each line of the script is an order, with tabs between its
 * words: `producer CODEC KIND` (of which `transactional` is one KIND, with a producer for each transaction), `begin`,
 * `commit`, `abort`, `flush`, and `record PARTITION TIMESTAMP KEY VALUE NAME VALUE ...`. Bytes are base64, `-` is null.
 */
public class WriteRecords {
    public static void main(String[] arguments) throws Exception {
        KafkaProducer<byte[], byte[]> producer = null;
        List<Future<?>> sent = new ArrayList<>();
        int producers = 0;
        String[] kind = {};
        boolean ended = false;
        for (String line : Files.readAllLines(Path.of(arguments[2]))) {
            String[] words = line.split("\t", -1);
            switch (words[0]) {
                case "producer" -> {
                    if (producer != null) {
                        producer.close();
                    }
                    kind = words;
                    ended = false;
                    producer = opened(arguments[0], kind, producers++);
                }
                case "begin" -> {
                    if (ended) {
                        // Of one producer, a broker may refuse the next transaction for good while the last one's
                        // marker is being written (KAFKA-18575 and its like).
                        producer.close();
                        producer = opened(arguments[0], kind, producers++);
                    }
                    producer.beginTransaction();
                }
                case "commit" -> {
                    producer.commitTransaction();
                    ended = true;
                }
                case "abort" -> {
                    producer.flush();
                    producer.abortTransaction();
                    ended = true;
                }
                case "flush" -> producer.flush();
                case "record" -> sent.add(producer.send(record(arguments[1], words)));
                default -> throw new IllegalArgumentException(line);
            }
        }
        producer.close();
        for (Future<?> each : sent) {
            each.get();
        }
    }

    private static KafkaProducer<byte[], byte[]> opened(String bootstrap, String[] kind, int number) {
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings(bootstrap, kind[1], kind[2], number));
        if (kind[2].equals("transactional")) {
            producer.initTransactions();
        }
        return producer;
    }

    private static ProducerRecord<byte[], byte[]> record(String topic, String[] words) {
        List<Header> headers = new ArrayList<>();
        for (int i = 5; i + 1 < words.length; i += 2) {
            headers.add(new RecordHeader(new String(bytes(words[i]), StandardCharsets.UTF_8), bytes(words[i + 1])));
        }
        int partition = Integer.parseInt(words[1]);
        return new ProducerRecord<>(topic, partition, Long.valueOf(words[2]), bytes(words[3]), bytes(words[4]), headers);
    }

    private static Properties settings(String bootstrap, String codec, String kind, int number) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("key.serializer", ByteArraySerializer.class.getName());
        settings.put("value.serializer", ByteArraySerializer.class.getName());
        settings.put("compression.type", codec);
        settings.put("linger.ms", "1000");
        settings.put("max.request.size", "4000000");
        settings.put("enable.idempotence", Boolean.toString(!kind.equals("plain")));
        if (kind.equals("transactional")) {
            settings.put("transactional.id", "java-" + ProcessHandle.current().pid() + "-" + number);
        }
        return settings;
    }

    private static byte[] bytes(String text) {
        return text.equals("-") ? null : Base64.getDecoder().decode(text);
    }
}
