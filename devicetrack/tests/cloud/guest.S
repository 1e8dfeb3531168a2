# The guest of the cloud: a boot sector that counts the boots which its persistent memory has seen.
#
# The first device in the slots of a guest's memory begins at 4 GiB. The first eight bytes there are the counter. The
# second half of the first 2 MiB is filled with 0x5a, so that a wipe has something to do. Then the guest waits for ever.
# It goes to long mode, because no other reaches so far. A guest without such memory counts nothing. guest_disk.c, which
# lies in the sectors after this one, does the same on an NVMe disk.

        .set    BASE, 0x7c00
        .set    SECTORS, 7
        .code16
        .globl  _start
_start:
        cli
        cld
        xorw    %ax, %ax
        movw    %ax, %ds
        movw    %ax, %es
        movw    %ax, %ss
        movw    $BASE, %sp

        # The rest of the code, from the disk that this sector is from.
        movb    $0x42, %ah
        movw    $packet, %si
        int     $0x13
        cld
        xorw    %ax, %ax

        # Tables of pages at 0x1000, 0x2000, 0x3000 and 0x4000: 2 MiB at 0, and 2 MiB at 4 GiB.
        movw    $0x1000, %di
        movw    $0x2000, %cx
        rep stosw
        movl    $0x2003, 0x1000
        movl    $0x3003, 0x2000
        movl    $0x4003, 0x2020
        movl    $0x83, 0x3000
        movl    $0x83, 0x4000
        movl    $1, 0x4004

        movl    %cr4, %eax
        orl     $0x20, %eax
        movl    %eax, %cr4
        movl    $0x1000, %eax
        movl    %eax, %cr3
        movl    $0xc0000080, %ecx
        rdmsr
        orl     $0x100, %eax
        wrmsr
        lgdtw   table
        movl    %cr0, %eax
        orl     $0x80000001, %eax
        movl    %eax, %cr0
        ljmp    $8, $long

        .code64
long:
        movabs  $0x100000000, %rdi
        incq    (%rdi)
        addq    $0x100000, %rdi
        movabs  $0x5a5a5a5a5a5a5a5a, %rax
        movl    $0x20000, %ecx
        rep stosq
        movl    $BASE, %esp
        call    count_on_disk
wait:
        hlt
        jmp     wait

        .balign 8
segments:
        .quad   0
        .quad   0x00209a0000000000
table:
        .word   15
        .long   segments

packet:
        .word   16, SECTORS, BASE + 512, 0
        .quad   1

        # A partition, for those who look whether an image is what it says.
        .org    446
        .byte   0x80, 0, 2, 0, 0x83, 0, 3, 0
        .long   1, 1
        .org    510
        .word   0xaa55
