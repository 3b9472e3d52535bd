//! A bitstream as Vivado writes it, and the manifest that vouches for it.
//!
//! ```text
//! .bit: 0009 (9 bytes) 0001  a design  b part  c date  d time  e length(4)  configuration data
//!       each of a..d: the letter, 2 bytes of length, text, NUL
//! ```
//! In: two files. Out: the configuration data, checked: whole, for the board's part, hash as the manifest says. All numbers of
//! the header are big-endian.

use super::{Error, Result};
use contract::flash::{Layout, SUBSECTOR, SYNC};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Says of a bitstream what it is made of. Made with it, kept beside it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Name of the board.
    pub board: String,
    /// Part of the FPGA.
    pub part: String,
    /// Contract of the RTL, major and minor.
    pub contract: String,
    /// Its layout hash.
    pub layout_hash: String,
    /// What made it, as the bitstream's header says.
    pub design: String,
    /// When, likewise.
    pub built: String,
    /// Bytes of the file.
    pub bytes: usize,
    /// SHA-256 of the file.
    pub sha256: String,
}

/// A bitstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// What the flash is to hold.
    pub data: Vec<u8>,
    /// Part that it is for.
    pub part: String,
    design: String,
    built: String,
    file: (usize, String),
}

impl Image {
    /// Reads a bitstream for a board.
    ///
    /// # Errors
    /// No bitstream, cut off, or for another part.
    pub fn read(layout: &'static Layout, file: &[u8]) -> Result<Image> {
        let not = |what| Error::NotABitstream { what };
        let cut = |want| Error::Truncated { have: file.len(), want };
        let begin = [0x00, 0x09];
        if !file.starts_with(&begin) {
            return Err(if begin.starts_with(file) {
                cut(begin.len())
            } else {
                not("it does not begin as one")
            });
        }
        let mut at = 2 + 9 + 2;
        let mut texts = [const { String::new() }; 4];
        for (text, letter) in texts.iter_mut().zip(*b"abcd") {
            let head = file.get(at..at + 3).ok_or_else(|| cut(at + 3))?;
            if head[0] != letter {
                return Err(not("its header is not in order"));
            }
            let length = usize::from(u16::from_be_bytes([head[1], head[2]]));
            at += 3;
            let bytes = file.get(at..at + length).ok_or_else(|| cut(at + length))?;
            *text = String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned();
            at += length;
        }
        let head: [u8; 5] =
            file.get(at..at + 5).and_then(|head| head.try_into().ok()).ok_or_else(|| cut(at + 5))?;
        if head[0] != b'e' {
            return Err(not("its header is not in order"));
        }
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        let data = &file[at + 5..];
        if data.len() < length {
            return Err(cut(at + 5 + length));
        }
        if data.len() > length {
            return Err(not("something follows it"));
        }
        let [design, part, date, time] = texts;
        if !part.eq_ignore_ascii_case(layout.part) {
            return Err(Error::WrongPart { board: layout.board, wanted: layout.part, found: part });
        }
        demand_synchronised(data)?;
        let file = (file.len(), hex(&sha256(file)));
        Ok(Image { data: data.to_vec(), part, design, built: format!("{date} {time}"), file })
    }

    /// A manifest that vouches for this very file.
    pub fn manifest(&self, layout: &Layout) -> Manifest {
        let version = contract::register::VERSION_VALUE;
        Manifest {
            board: layout.board.to_owned(),
            part: self.part.clone(),
            contract: format!("{}.{}", version >> 16, version & 0xffff),
            layout_hash: format!("{:016x}", contract::LAYOUT_HASH),
            design: self.design.clone(),
            built: self.built.clone(),
            bytes: self.file.0,
            sha256: self.file.1.clone(),
        }
    }

    /// Demands that a manifest vouches for it.
    ///
    /// # Errors
    /// It does not, or is none.
    pub fn check(&self, layout: &'static Layout, manifest: &str) -> Result<Manifest> {
        let manifest: Manifest =
            serde_json::from_str(manifest).map_err(|error| Error::BadManifest { what: error.to_string() })?;
        if manifest.board != layout.board {
            return Err(Error::WrongBoard { wanted: layout.board, found: manifest.board });
        }
        if !manifest.sha256.eq_ignore_ascii_case(&self.file.1) {
            return Err(Error::WrongHash { found: self.file.1.clone(), wanted: manifest.sha256 });
        }
        Ok(manifest)
    }
}

/// Demands that the FPGA finds the beginning of an image in its first subsector.
pub(super) fn demand_synchronised(data: &[u8]) -> Result<()> {
    let head = &data[..data.len().min(SUBSECTOR as usize)];
    match head.windows(4).any(|word| word == SYNC.to_be_bytes()) {
        true => Ok(()),
        false if head.is_empty() => Err(Error::NotABitstream { what: "it is empty" }),
        false => Err(Error::NotABitstream { what: "its first 4096 bytes hold no synchronisation word" }),
    }
}

/// SHA-256.
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// Two digits a byte.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
