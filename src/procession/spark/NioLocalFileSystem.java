package procession;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermission;
import java.util.EnumSet;
import java.util.Set;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * Hadoop's local file system, which sets permissions in the JVM instead of with the program chmod.
 *
 * `procession warm` compiles it with Janino, which has no generics (spark/class_archive).
 */
public class NioLocalFileSystem extends RawLocalFileSystem {
    private static final PosixFilePermission[] BITS = {
        PosixFilePermission.OTHERS_EXECUTE, PosixFilePermission.OTHERS_WRITE, PosixFilePermission.OTHERS_READ,
        PosixFilePermission.GROUP_EXECUTE, PosixFilePermission.GROUP_WRITE, PosixFilePermission.GROUP_READ,
        PosixFilePermission.OWNER_EXECUTE, PosixFilePermission.OWNER_WRITE, PosixFilePermission.OWNER_READ,
    };

    public void setPermission(Path path, FsPermission permission) throws IOException {
        if (permission.toShort() >> BITS.length != 0) { // the sticky bit, which Java does not know
            super.setPermission(path, permission);
            return;
        }
        Set permissions = EnumSet.noneOf(PosixFilePermission.class);
        for (int bit = 0; bit < BITS.length; bit++) {
            if ((permission.toShort() >> bit & 1) == 1) {
                permissions.add(BITS[bit]);
            }
        }
        Files.setPosixFilePermissions(pathToFile(path).toPath(), permissions);
    }
}
