import java.io.IOException;
import java.io.PrintWriter;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.stream.Stream;
import java.util.zip.CRC32C;

/**
 * The digests of runs that were copied by whole batches, computed from a broker's own files: without a client, and
 * without anything of Mirrorless.
 *
 * <p>Run as: java BatchDigests FOLDER RUNS OUTPUT. FOLDER is the partition's on the broker. Each line of RUNS is a run:
 * the ranges of downstream offsets that hold its records, `FIRST:NEXT` with spaces between. OUTPUT has a line for each:
 * the digest in hexadecimal digits, its batches and its records. Checksums are verified; markers of transactions lie
 * between runs, and are passed over.
 */
public class BatchDigests {
    private static final int HEADER = 61;
    private static final int CHECKED_FROM = 21;

    public static void main(String[] arguments) throws Exception {
        List<ByteBuffer> batches = batches(Path.of(arguments[0]));
        try (PrintWriter out = new PrintWriter(arguments[2], StandardCharsets.UTF_8)) {
            for (String run : Files.readAllLines(Path.of(arguments[1]))) {
                out.println(proof(batches, run));
            }
        }
    }

    private static List<ByteBuffer> batches(Path folder) throws IOException {
        List<Path> segments;
        try (Stream<Path> files = Files.list(folder)) {
            segments = files.filter(each -> each.toString().endsWith(".log")).sorted().toList();
        }
        List<ByteBuffer> found = new ArrayList<>();
        for (Path segment : segments) {
            ByteBuffer content = ByteBuffer.wrap(Files.readAllBytes(segment));
            int at = 0;
            while (at + HEADER <= content.limit() && content.getInt(at + 8) > 0) {
                int size = 12 + content.getInt(at + 8);
                found.add(checked(content.slice(at, size)));
                at += size;
            }
        }
        return found;
    }

    private static ByteBuffer checked(ByteBuffer batch) {
        CRC32C crc = new CRC32C();
        crc.update(batch.slice(CHECKED_FROM, batch.limit() - CHECKED_FROM));
        if ((int) crc.getValue() != batch.getInt(17)) {
            throw new IllegalStateException("the batch @ " + batch.getLong(0) + " has another checksum");
        }
        return batch;
    }

    private static String proof(List<ByteBuffer> batches, String run) throws Exception {
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        int count = 0;
        long records = 0;
        for (String range : run.split(" ")) {
            long first = Long.parseLong(range.split(":")[0]);
            long next = Long.parseLong(range.split(":")[1]);
            for (ByteBuffer batch : batches) {
                boolean isMarker = (batch.getShort(21) & 0x20) != 0;
                if (isMarker || batch.getLong(0) < first || batch.getLong(0) >= next) {
                    continue;
                }
                ByteBuffer payload = batch.slice(HEADER, batch.limit() - HEADER);
                ByteBuffer proved = ByteBuffer.allocate(21);
                proved.put((byte) (batch.getShort(21) & 0x07)); // codec
                proved.putInt(batch.getInt(23)); // last offset delta
                proved.putLong(batch.getLong(27)); // base timestamp
                proved.putInt(batch.getInt(57)); // number of records
                proved.putInt(payload.remaining());
                digest.update(proved.flip());
                digest.update(payload);
                count++;
                records += batch.getInt(57);
            }
        }
        return HexFormat.of().formatHex(digest.digest()) + " " + count + " " + records;
    }
}
