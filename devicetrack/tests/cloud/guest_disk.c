/* Counts the boots that an NVMe disk has seen, in its first four bytes. Runs in long mode without interrupts: the firmware
 * leaves alone the disks that it is not to boot from. A guest without such a disk counts nothing.
 */

typedef unsigned int u32;
typedef unsigned long u64;

enum { CONFIGURATION = 0x14, STATUS = 0x1c, SIZES = 0x24, SUBMISSIONS = 0x28, COMPLETIONS = 0x30, DOORBELLS = 0x1000 };
enum { CREATE_SUBMISSIONS = 1, CREATE_COMPLETIONS = 5, WRITE = 1, READ = 2 };
enum { QUEUES = 0x20000, PAGE = 0x1000, ENTRIES = 16, BUFFER = QUEUES + 4 * PAGE };

static volatile char *registers;
static u32 stride;
static u32 sent[2];

static void put_port(u32 port, u32 value) { __asm__ volatile("outl %0, %w1" : : "a"(value), "d"(port)); }
static u32 get_port(u32 port) { u32 value; __asm__ volatile("inl %w1, %0" : "=a"(value) : "d"(port)); return value; }

static u32 get_pci(u32 device, u32 offset) { put_port(0xcf8, 1u << 31 | device << 11 | offset); return get_port(0xcfc); }
static void put_pci(u32 device, u32 offset, u32 value)
{
    put_port(0xcf8, 1u << 31 | device << 11 | offset);
    put_port(0xcfc, value);
}

static u32 get(u32 offset) { return *(volatile u32 *)(registers + offset); }
static void put(u32 offset, u32 value) { *(volatile u32 *)(registers + offset) = value; }

/* Give a command to queue 0, for administration, or 1, and wait for its end. */
static void command(u32 queue, u32 opcode, u32 namespace, u64 data, u32 word10, u32 word11)
{
    volatile u32 *entry = (u32 *)(u64)(QUEUES + queue * 2 * PAGE + sent[queue] % ENTRIES * 64);
    volatile u32 *answer = (u32 *)(u64)(QUEUES + queue * 2 * PAGE + PAGE + sent[queue] % ENTRIES * 16);

    entry[0] = opcode | sent[queue] << 16;
    entry[1] = namespace;
    entry[6] = data;
    entry[10] = word10;
    entry[11] = word11;
    sent[queue]++;
    put(DOORBELLS + 2 * queue * stride, sent[queue] % ENTRIES);
    while (!(answer[3] & 1 << 16))
        ;
    put(DOORBELLS + (2 * queue + 1) * stride, sent[queue] % ENTRIES);
}

void count_on_disk(void)
{
    u64 *gigabytes = (u64 *)0x2000, *table = (u64 *)0x5000;
    u32 device = 0;

    while (get_pci(device, 8) >> 8 != 0x010802)
        if (++device == 32)
            return;
    put_pci(device, 4, get_pci(device, 4) | 6);
    registers = (char *)(u64)(get_pci(device, 0x10) & ~15u);
    /* The registers are in the fourth gigabyte. */
    for (u64 number = 0; number < 512; number++)
        table[number] = (3ul << 30 | number << 21) | 0x9b;
    gigabytes[3] = 0x5003;
    for (u64 *word = (u64 *)(u64)QUEUES; word < (u64 *)(u64)(BUFFER + PAGE); word++)
        *word = 0;

    put(CONFIGURATION, 0);
    while (get(STATUS) & 1)
        ;
    stride = 4u << (get(4) & 15);
    put(SIZES, (ENTRIES - 1) << 16 | (ENTRIES - 1));
    put(SUBMISSIONS, QUEUES);
    put(SUBMISSIONS + 4, 0);
    put(COMPLETIONS, QUEUES + PAGE);
    put(COMPLETIONS + 4, 0);
    put(CONFIGURATION, 4 << 20 | 6 << 16 | 1);
    while (!(get(STATUS) & 1))
        ;
    command(0, CREATE_COMPLETIONS, 0, QUEUES + 3 * PAGE, (ENTRIES - 1) << 16 | 1, 1);
    command(0, CREATE_SUBMISSIONS, 0, QUEUES + 2 * PAGE, (ENTRIES - 1) << 16 | 1, 1 << 16 | 1);
    command(1, READ, 1, BUFFER, 0, 0);
    ++*(u32 *)(u64)BUFFER;
    command(1, WRITE, 1, BUFFER, 0, 0);
}
