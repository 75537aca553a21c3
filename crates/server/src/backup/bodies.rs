//! The files that hold the bodies of an export.

use super::manifest::Piece;
use super::place::{Place, Writer};
use super::{Result, data_file};

/// Writes bodies one after another into files.
pub(super) struct Bodies {
    place: Place,
    name: String,
    file_bytes_max: u64,
    /// Number of the last file.
    pub(super) number: u64,
    /// Bytes in the last file.
    at: u64,
    writer: Option<Writer>,
    /// Bytes in all files.
    pub(super) bytes: u64,
}

impl Bodies {
    /// Files of the export `name`, each of at most `file_bytes_max` bytes.
    pub(super) fn new(place: &Place, name: &str, file_bytes_max: u64) -> Self {
        Self {
            place: place.clone(),
            name: name.to_owned(),
            file_bytes_max: file_bytes_max.max(1),
            number: 0,
            at: 0,
            writer: None,
            bytes: 0,
        }
    }

    /// Appends bytes, and the places that they got to `pieces`.
    pub(super) async fn write(&mut self, mut bytes: &[u8], pieces: &mut Vec<Piece>) -> Result<()> {
        while !bytes.is_empty() {
            if self.at >= self.file_bytes_max {
                self.finish().await?;
            }
            if self.writer.is_none() {
                self.number += 1;
                self.at = 0;
                let path = format!("{}/{}", self.name, data_file(self.number));
                self.writer = Some(self.place.create(&path).await?);
            }
            let room = usize::try_from(self.file_bytes_max - self.at).unwrap_or(usize::MAX);
            let (now, later) = bytes.split_at(bytes.len().min(room));
            if let Some(writer) = &mut self.writer {
                writer.write(now).await?;
            }
            let length = now.len() as u64;
            match pieces.last_mut() {
                Some(last) if last.file == self.number => last.length += length,
                _ => pieces.push(Piece { export: None, file: self.number, offset: self.at, length }),
            }
            self.at += length;
            self.bytes += length;
            bytes = later;
        }
        Ok(())
    }

    /// Completes the last file.
    pub(super) async fn finish(&mut self) -> Result<()> {
        match self.writer.take() {
            Some(writer) => writer.finish().await,
            None => Ok(()),
        }
    }
}
