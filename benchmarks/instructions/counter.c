// A plugin of QEMU that counts the instructions that a process executes, in the first eight bytes of a file that other processes may
// read meanwhile: -plugin libcounter.so,into=FILE
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

// From qemu-plugin.h, which few systems have in a package.
typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
enum qemu_plugin_op { QEMU_PLUGIN_INLINE_ADD_U64 };
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *block);
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id, void (*call)(qemu_plugin_id_t, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *block, enum qemu_plugin_op op, void *number, uint64_t operand);

#define EXPORTED __attribute__((visibility("default")))

EXPORTED int qemu_plugin_version = 1;
static uint64_t *count;

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *block) {
  (void)id;
  qemu_plugin_register_vcpu_tb_exec_inline(block, QEMU_PLUGIN_INLINE_ADD_U64, count, qemu_plugin_tb_n_insns(block));
}

EXPORTED int qemu_plugin_install(qemu_plugin_id_t id, const void *about, int number, char **argument) {
  (void)about;
  if (number != 1 || strncmp(argument[0], "into=", 5)) return 1;
  int file = open(argument[0] + 5, O_RDWR | O_CREAT, 0600);
  if (file < 0 || ftruncate(file, sizeof *count)) return 1;
  count = mmap(0, sizeof *count, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (count == MAP_FAILED) return 1;
  qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
  return 0;
}
