//! Keys that sign capsules. A file of a secret key has [`SECRET`] and a line of hexadecimal digits,
//! so that the file of a public key, which has digits alone, is not taken for one.

use anyhow::{Context, Result, bail, ensure};
use samite::mobile::SigningKey;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The first line of a file with a secret key.
const SECRET: &str = "samite secret key";

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    let text = text.trim();
    let digits = text.len() == 64 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    let byte = |at: usize| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok();
    let bytes: Option<Vec<u8>> = digits.then(|| (0..32).map(byte).collect()).flatten();
    bytes?.try_into().ok()
}

/// Makes a key that only its owner can read; never replaces one.
pub(super) fn make(file: &Path) -> Result<SigningKey> {
    let mut secret = [0; 32];
    let got = rustix::rand::getrandom(&mut secret, rustix::rand::GetRandomFlags::empty())?;
    ensure!(
        got == secret.len(),
        "the system gave {got} random bytes of {}",
        secret.len()
    );
    let made = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(file);
    let mut made = made.with_context(|| format!("{} cannot be created", file.display()))?;
    if let Err(error) = write!(made, "{SECRET}\n{}\n", hex(&secret)) {
        // Half of a key would be in the way of another try.
        let _ = fs::remove_file(file);
        return Err(error).with_context(|| format!("{} cannot be written", file.display()));
    }
    Ok(SigningKey::from_bytes(&secret))
}

/// Returns whether a file has a secret key.
pub(super) fn is_secret(file: &Path) -> bool {
    let mut begin = [0; SECRET.len()];
    let mut read = || fs::File::open(file)?.read_exact(&mut begin);
    file.is_file() && read().is_ok() && begin == *SECRET.as_bytes()
}

/// Reads a secret key.
pub(super) fn secret(file: &Path) -> Result<SigningKey> {
    let bytes = fs::read(file);
    let bytes = bytes.with_context(|| format!("the key {} cannot be read", file.display()))?;
    let text = String::from_utf8_lossy(&bytes);
    let file = file.display();
    if let Some(bytes) = text.strip_prefix(SECRET).and_then(unhex) {
        return Ok(SigningKey::from_bytes(&bytes));
    }
    if unhex(&text).is_some() {
        bail!(
            "{file} is no secret key, but looks like a public one: it lacks the first line \
             `{SECRET}`. Give the file that `samite capsule key` has made. If an earlier version \
             made this one, put that line before it"
        );
    }
    bail!(
        "{file} is no secret key: a file with one has the line `{SECRET}` and 64 hexadecimal \
         digits. `samite capsule key` with the name of a new file makes one"
    )
}

/// Returns a public key: as it is written, as it is in a file, or that of a file with a secret key.
pub(super) fn public(key: &str) -> Result<String> {
    if let Some(bytes) = unhex(key) {
        return Ok(hex(&bytes));
    }
    let file = Path::new(key);
    ensure!(
        file.exists(),
        "`{key}` is no public key, which has 64 hexadecimal digits, and no file with a key"
    );
    match fs::read_to_string(file).ok().as_deref().and_then(unhex) {
        Some(bytes) => Ok(hex(&bytes)),
        None => Ok(hex(secret(file)?.verifying_key().as_bytes())),
    }
}
