//! Shared objects.

use crate::build::{self, can_build, compile_text, kernels};
use samite_engines::clang;
use samite_engines::elf::{self, CODE_MAX, Elf};
use samite_engines::{Context, Engine, Grants, Limits, Refused};
use samite_testkit::fuzz;

fn refusal(code: &[u8]) -> Refused {
    Elf.prepare(code, &["echo".into()]).map(|_| ()).unwrap_err()
}

/// A header of a shared object for this machine, with one program header of each needed kind.
fn headers() -> Vec<u8> {
    let machine: u8 = match std::env::consts::ARCH {
        "x86_64" => 62,
        "aarch64" => 183,
        other => panic!("no ELF machine for {other}"),
    };
    let mut bytes = vec![0; 64 + 3 * 56];
    bytes[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    (bytes[16], bytes[18], bytes[20]) = (3, machine, 1);
    (bytes[32], bytes[52], bytes[54], bytes[56]) = (64, 64, 56, 3);
    for (number, kind) in [[1, 0, 0, 0], [2, 0, 0, 0], [0x51, 0xe5, 0x74, 0x64]]
        .iter()
        .enumerate()
    {
        bytes[64 + 56 * number..][..4].copy_from_slice(kind);
    }
    bytes
}

#[test]
fn bytes_that_are_no_shared_object_are_refused() {
    for bytes in [&b""[..], b"\x7fELF", b"\0asm\x01\0\0\0", b"BC\xc0\xde"] {
        assert!(matches!(refusal(bytes), Refused::Invalid(_)), "{bytes:?}");
    }
    let long = refusal(&vec![0; CODE_MAX as usize + 1]);
    assert!(matches!(long, Refused::TooLong { .. }), "{long}");

    let patched = |at: usize, value: u8| {
        let mut bytes = headers();
        bytes[at] = value;
        refusal(&bytes).to_string()
    };
    let this = std::env::consts::ARCH;
    let (number, other) = match this {
        "aarch64" => (62, "x86_64"),
        _ => (183, "aarch64"),
    };
    let text = patched(18, number);
    assert!(text.contains(other) && text.contains(this), "{text}");
    assert!(patched(4, 1).contains("64 bits"));
    assert!(patched(16, 2).contains("-shared"));
    for field in [8, 32] {
        // Of a segment: its place in the file, and its length there.
        let text = patched(64 + field + 1, 255);
        assert!(text.contains("segments end behind"), "{text}");
    }
    assert!(patched(64 + 56 * 2 + 4, 1).contains("executable stack"));
    // A number of sections, of which nothing says where they are.
    assert!(patched(60, 9).contains("section headers"));
    let mut bytes = headers();
    (bytes[58], bytes[60]) = (64, 9);
    assert!(refusal(&bytes).to_string().contains("sections end behind"));
}

/// The loader follows the last of them: a first one that asks for nothing must not hide it.
#[test]
fn an_object_cannot_ask_for_an_executable_stack() {
    let stack = |flags: &[u8]| {
        let mut bytes = headers();
        let header = bytes[64 + 56 * 2..].to_vec();
        bytes.truncate(64 + 56 * 2);
        for flags in flags {
            bytes.extend_from_slice(&header);
            let end = bytes.len();
            bytes[end - 52] = *flags;
        }
        bytes[56] = 2 + flags.len() as u8;
        elf::machine(&bytes).map_err(|refused| refused.to_string())
    };
    const PLAIN: u8 = 6;
    assert_eq!(stack(&[PLAIN]), Ok(std::env::consts::ARCH));
    for flags in [&[][..], &[PLAIN | 1], &[PLAIN, PLAIN | 1], &[PLAIN, PLAIN]] {
        let refused = stack(flags).unwrap_err();
        assert!(refused.contains("stack"), "{flags:?}: {refused}");
    }
}

#[test]
fn random_bytes_are_refused() {
    let name = "elf::random_bytes_are_refused";
    fuzz::rounds(name, 2000, |_, random| {
        let mut bytes = fuzz::bytes(random, 4096);
        let keep = random.usize(..=64);
        let known = headers();
        if bytes.len() > keep {
            bytes[..keep].copy_from_slice(&known[..keep]);
        }
        refusal(&bytes);
    });
}

#[test]
fn a_truncated_object_is_refused() {
    let Some(built) = kernels("elf::a_truncated_object_is_refused") else {
        return;
    };
    for end in (0..built.elf.len()).step_by(7) {
        let refused = refusal(&built.elf[..end]);
        assert!(matches!(refused, Refused::Invalid(_)), "{end}: {refused}");
    }
}

#[test]
fn an_object_that_lacks_something_is_refused() {
    if !can_build("elf::an_object_that_lacks_something_is_refused") {
        return;
    }
    let plain = "int echo(unsigned char *payload, unsigned len) { return *payload + len; }";
    let bare = &["-O3", "-fPIC", "-shared", "-nostdlib"];
    let text = refusal(&compile_text(plain, bare)).to_string();
    assert!(text.contains("samite_bind"), "{text}");
    let calls = format!("{plain} int nobody(void); int other(void) {{ return nobody(); }}");
    let refused = refusal(&compile_text(&calls, bare));
    assert_eq!(refused, Refused::Import("nobody".into()));
    let stack = &[bare as &[&str], &["-Wl,-z,execstack"]].concat();
    let text = refusal(&compile_text(plain, stack)).to_string();
    assert!(text.contains("noexecstack"), "{text}");
}

/// Where clang finds the library of GCC for aarch64, it calls that for atomics unless it is told
/// not to. The first flag makes it do so everywhere.
#[test]
fn atomics_for_aarch64_need_no_library() {
    if !can_build("elf::atomics_for_aarch64_need_no_library") {
        return;
    }
    let source = "int run(unsigned *payload, unsigned len) {
        return (int)__atomic_fetch_add(payload, len, __ATOMIC_SEQ_CST); }";
    let outlined = ["--target=aarch64-linux-gnu", "-moutline-atomics"];
    let calls = |flags: &[&str]| {
        let code = compile_text(source, flags);
        code.windows(10).any(|bytes| bytes == b"__aarch64_")
    };
    assert!(calls(&[&outlined[..], &["-O3", "-c"]].concat()));
    let lld = ["-fuse-ld=lld"];
    let flags = [&outlined[..], &clang::elf("aarch64"), &lld].concat();
    assert!(!calls(&flags));
}

#[test]
fn objects_are_not_confused_with_each_other() {
    if !can_build("elf::objects_are_not_confused_with_each_other") {
        return;
    }
    // The loader would return the first one for the same path. An object of this kind stays
    // loaded, and its descriptor is closed.
    let build = |reply: u32| {
        let text = format!(
            "#include \"samite_kernel.h\"\n
            SAMITE_KERNEL int32_t run(uint8_t *payload, uint32_t len) {{
                (void)payload, (void)len; samite_reply(\"{reply}\", 1); return 0; }}"
        );
        compile_text(&text, &[&build::elf()[..], &["-Wl,-z,nodelete"]].concat())
    };
    let codes: Vec<_> = (0..3).map(build).collect();
    for round in 0..6 {
        let number = round % codes.len();
        let code = Elf.prepare(&codes[number], &["run".into()]).unwrap();
        let mut context = Context::new(0, 1, Grants::default());
        context.begin(Limits::default(), 0, 0);
        let mut instance = code.instance(&Grants::default()).unwrap();
        let (context, ended) = instance.call(0, Box::new(context), b"");
        assert_eq!(ended, Ok(()));
        assert_eq!(context.replied(), Some(number.to_string().as_bytes()));
    }
}
