//! LLVM bitcode.

use crate::build::{self, can_build, compile_text, kernels};
use samite_engines::bitcode::{self, Bitcode};
use samite_engines::clang;
use samite_engines::{Context, Engine, Grants, Limits, Refused, Trap};
use samite_testkit::{fuzz, require};

fn refusal(bitcode: &Bitcode, code: &[u8], entry: &str) -> Refused {
    let refused = bitcode.prepare(code, &[entry.into()]);
    refused.map(|_| ()).unwrap_err()
}

/// Returns the engine; without LLVM the test is skipped by name.
fn engine(test: &str) -> Option<Bitcode> {
    let engine = Bitcode::new(None);
    let present = require(test, engine.is_ok(), "install libllvm22: ci/packages.txt");
    present.then(|| engine.unwrap())
}

#[test]
fn without_llvm_there_is_no_engine() {
    let folder = tempfile::tempdir().unwrap();
    let refused = Bitcode::new(Some(folder.path())).unwrap_err();
    assert!(matches!(refused, Refused::NoEngine(_)), "{refused:?}");
    let text = refused.to_string();
    let folder = folder.path().display().to_string();
    assert!(
        text.contains("libllvm22") && text.contains(&folder),
        "{text}"
    );
    // Another library.
    let other = Bitcode::new(Some("libc.so.6".as_ref())).unwrap_err();
    assert!(other.to_string().contains("it is no LLVM"), "{other}");
}

#[test]
fn bytes_that_are_no_bitcode_are_refused() {
    let name = "bitcode::bytes_that_are_no_bitcode_are_refused";
    let Some(engine) = engine(name) else {
        return;
    };
    for bytes in [
        &b""[..],
        b"BC",
        b"BC\xc0\xde",
        b"\x7fELF",
        b"BC\xc0\xde\0\0\0\0",
    ] {
        let refused = refusal(&engine, bytes, "run");
        assert!(matches!(refused, Refused::Invalid(_)), "{refused}");
    }
    fuzz::rounds(name, 500, |_, random| {
        let mut bytes = fuzz::bytes(random, 4096);
        if bytes.len() > 4 && random.bool() {
            bytes[..4].copy_from_slice(b"BC\xc0\xde");
        }
        refusal(&engine, &bytes, "run");
    });
}

#[test]
fn truncated_bitcode_is_refused() {
    let name = "bitcode::truncated_bitcode_is_refused";
    let (Some(engine), Some(built)) = (engine(name), kernels(name)) else {
        return;
    };
    for end in (0..built.bitcode.len()).step_by(29) {
        let refused = refusal(&engine, &built.bitcode[..end], "echo");
        assert!(matches!(refused, Refused::Invalid(_)), "{end}: {refused}");
    }
}

/// Some tools put a header before bitcode, and padding behind it.
#[test]
fn bitcode_with_a_header_runs() {
    let name = "bitcode::bitcode_with_a_header_runs";
    let (Some(engine), Some(built)) = (engine(name), kernels(name)) else {
        return;
    };
    let code = &built.bitcode;
    let words = [0x0b17_c0de, 0, 20, code.len() as u32, 7].map(u32::to_le_bytes);
    let padded = [words.as_flattened(), &code[..], &[0; 12]].concat();
    for code in [&code[..], &padded] {
        assert_eq!(bitcode::producer(code), Ok(22));
        let code = engine.prepare(code, &["echo".into()]).unwrap();
        let mut instance = code.instance(&Grants::default()).unwrap();
        let mut context = Box::new(Context::new(0, 1, Grants::default()));
        context.begin(Limits::default(), 0, 0);
        let (context, ended) = instance.call(0, context, b"payload");
        assert_eq!((ended, context.replied()), (Ok(()), Some(&b"payload"[..])));
    }
    // Cut inside of the bitcode.
    let cut = &padded[..padded.len() - 13];
    let refused = refusal(&engine, cut, "echo").to_string();
    assert!(refused.contains("no LLVM bitcode"), "{refused}");
}

#[test]
fn code_that_calls_what_is_not_offered_is_refused() {
    let name = "bitcode::code_that_calls_what_is_not_offered_is_refused";
    let (Some(engine), true) = (engine(name), can_build(name)) else {
        return;
    };
    let build = |body: &str, before: &str| {
        let head = "unsigned char *payload, unsigned len";
        compile_text(
            &format!("{before} int run({head}) {{ (void)len; (void)payload; {body} }}"),
            &build::bitcode(),
        )
    };
    let import = |body: &str, before: &str| match refusal(&engine, &build(body, before), "run") {
        Refused::Import(name) => name,
        other => panic!("{other}"),
    };
    let calls = import("return system(\"true\");", "int system(const char *);");
    assert_eq!(calls, "system");
    let uses = import("return environ != 0;", "extern char **environ;");
    assert_eq!(uses, "environ");
    // The compiler calls a function that the source does not name.
    let divides = "unsigned __int128 *wide = (void *)payload; return wide[0] / wide[1];";
    assert_eq!(import(divides, ""), "__udivti3");

    let text = refusal(&engine, &build("return 0;", ""), "other").to_string();
    assert!(text.contains("`other`"), "{text}");
    let float = compile_text("float run(float of) { return of; }", &build::bitcode());
    assert_eq!(
        refusal(&engine, &float, "run"),
        Refused::Entry("run".into())
    );
    let starts = build(
        "return 0;",
        "__attribute__((constructor)) void start(void) {}",
    );
    assert!(
        refusal(&engine, &starts, "run")
            .to_string()
            .contains("at its start")
    );
}

#[test]
fn code_that_was_not_optimised_runs() {
    let name = "bitcode::code_that_was_not_optimised_runs";
    let (Some(engine), true) = (engine(name), can_build(name)) else {
        return;
    };
    let source = "#include <stdint.h>
        static int32_t table[4] = {5, 6, 7, 8};
        static int32_t get(const int32_t *of, uint32_t at) { return of[at & 3]; }
        int32_t run(uint8_t *payload, uint32_t len) {
            uint8_t copy[256] = {0};
            for (uint32_t at = 0; at < len; at++)
                copy[at] = payload[at];
            return get(table, copy[0]) * 10 + len;
        }";
    for flags in [
        &["-O0"][..],
        &["-O0", "-g"],
        &["-O2", "-g", "-march=native"],
    ] {
        let code = compile_text(source, &[&build::bitcode(), flags].concat());
        let code = engine.prepare(&code, &["run".into()]).unwrap();
        let mut instance = code.instance(&Grants::default()).unwrap();
        let mut context = Box::new(Context::new(0, 1, Grants::default()));
        context.begin(Limits::default(), 0, 0);
        let (_, ended) = instance.call(0, context, &[2, 0, 0]);
        let failed = Trap::Failed {
            code: 73,
            text: String::new(),
        };
        assert_eq!(ended, Err(failed), "{flags:?}");
    }
}

/// The first processors of this kind do not count bits by an instruction, and the compiler is told
/// that this is one of them. The kernel replies with its own instructions.
#[cfg(target_arch = "x86_64")]
#[test]
fn code_is_compiled_for_this_processor() {
    let name = "bitcode::code_is_compiled_for_this_processor";
    let (Some(engine), true) = (engine(name), can_build(name)) else {
        return;
    };
    if !std::arch::is_x86_feature_detected!("popcnt") {
        return eprintln!("{name}: skipped: this processor has no more than the first ones");
    }
    let source = "#include \"samite_kernel.h\"
        SAMITE_KERNEL int32_t run(uint8_t *payload, uint32_t len) {
            (void)len;
            *payload = (uint8_t)__builtin_popcountll(*(uint64_t *)payload);
            samite_reply((uint8_t *)run, 64);
            return 0;
        }";
    let old = ["-march=x86-64"];
    let code = compile_text(source, &[&build::bitcode(), &old[..]].concat());
    let code = engine.prepare(&code, &["run".into()]).unwrap();
    let mut instance = code.instance(&Grants::default()).unwrap();
    let mut context = Box::new(Context::new(0, 1, Grants::default()));
    context.begin(Limits::default(), 0, 0);
    let (context, ended) = instance.call(0, context, &[7; 8]);
    assert_eq!(ended, Ok(()));
    // popcnt, with 64 bits.
    let counts = |bytes: &[u8]| matches!(bytes, [0xf3, 0x48..=0x4f, 0x0f, 0xb8]);
    let run = context.replied().unwrap();
    assert!(run.windows(4).any(counts), "{run:x?}");
}

#[test]
fn code_for_another_machine_is_refused() {
    let name = "bitcode::code_for_another_machine_is_refused";
    let (Some(engine), true) = (engine(name), can_build(name)) else {
        return;
    };
    let this = std::env::consts::ARCH;
    let other = match this {
        "aarch64" => "x86_64",
        _ => "aarch64",
    };
    let source = "int run(unsigned char *payload, unsigned len) { return *payload + len; }";
    let code = compile_text(source, &clang::bitcode(other));
    let text = refusal(&engine, &code, "run").to_string();
    assert!(text.contains(other) && text.contains(this), "{text}");
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_fatal_error_of_llvm_refuses_the_code() {
    const CHILD: &str = "SAMITE_TEST_LLVM_FAILS";
    let name = "bitcode::a_fatal_error_of_llvm_refuses_the_code";
    let (Some(engine), true) = (engine(name), can_build(name)) else {
        return;
    };
    // LLVM is of no use afterwards, so a process of its own runs it.
    if std::env::var_os(CHILD).is_none() {
        let program = std::env::current_exe().unwrap();
        let mut child = std::process::Command::new(program);
        let ended = child
            .args(["--exact", name])
            .env(CHILD, "1")
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&ended.stderr);
        return assert!(ended.status.success(), "{errors}");
    }
    // An instruction that no processor of today has.
    let source = "typedef double two __attribute__((vector_size(16)));
        __attribute__((target(\"xop\")))
        int run(unsigned char *payload, unsigned len) {
            *(two *)payload = __builtin_ia32_vfrczpd(*(two *)payload);
            return (int)len;
        }";
    let code = compile_text(source, &build::bitcode());
    let refused = refusal(&engine, &code, "run");
    assert!(refused.to_string().contains("vfrcz"), "{refused}");
    let again = refusal(&engine, &code, "run");
    assert!(matches!(again, Refused::NoEngine(_)), "{again}");
    assert!(Bitcode::new(None).is_ok());
}
