//! Settings of any content, from every layer: an error that names its place, or settings; never a
//! panic.
//!
//! `SAMITE_FUZZ_SEED=N` repeats a seed; `SAMITE_FUZZ_MINUTES=N` runs others for so long.

use samite::config::{Config, Layers};
use samite_testkit::fuzz::{self, Rng, mutate};
use std::path::Path;

/// Values of settings, and things that look like some.
const VALUES: [&str; 14] = [
    "8 KiB",
    "1.5 GiB",
    "99999999999999999999 GiB",
    "-3 ms",
    "never",
    "auto",
    "1h 1h",
    "nan",
    "1e400 s",
    "",
    "\u{1f980}",
    "[]",
    "{}",
    "18446744073709551615 years",
];

fn mutated(random: &mut Rng, text: &str) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for _ in 0..random.u32(1..3) {
        if random.bool() {
            let value = random.choice(VALUES).unwrap_or_default();
            let at = random.usize(..=bytes.len());
            bytes.splice(at..at, value.bytes());
        } else {
            mutate(random, &mut bytes);
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn no_text_breaks_the_settings() {
    let whole = Config::default().to_toml();
    let keys: Vec<String> = {
        let mut table = String::new();
        let lines = whole.lines().filter_map(|line| {
            if let Some(name) = line.strip_prefix('[') {
                table = name.trim_end_matches(']').to_owned();
            }
            let (key, _) = line.split_once(" = ")?;
            Some(format!("{table}.{key}"))
        });
        lines.collect()
    };
    fuzz::rounds(
        "decoders::no_text_breaks_the_settings",
        2000,
        |_, random| {
            let path = Path::new("fuzz.toml");
            let mut layers = Layers::default();
            for _ in 0..3 {
                let key = random.choice(&keys).map_or("", String::as_str).to_owned();
                let value = random.choice(VALUES).unwrap_or_default();
                let next = std::mem::take(&mut layers);
                let next = match random.u32(..5) {
                    0 => next.file(path, &mutated(random, &whole)),
                    1 => next.workflow(
                        path,
                        &mutated(random, &format!("[config]\n{key} = \"{value}\"")),
                    ),
                    2 => {
                        let name = format!("SAMITE_{}", key.replace('.', "_").to_uppercase());
                        next.environment([(name, mutated(random, value))])
                    }
                    3 => next.assignment(&mutated(random, &format!("{key}={value}"))),
                    _ => next.file(path, &format!("{key} = \"{value}\"")),
                };
                if let Ok(next) = next {
                    layers = next;
                }
            }
            if let Ok(resolved) = layers.resolve() {
                let _ = resolved.to_toml_with_origin();
                let _ = resolved.config.streams();
            }
            let _ = Config::from_toml(&mutated(random, &whole));
        },
    );
}
