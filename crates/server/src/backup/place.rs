//! Places of exports: a directory, or a prefix in a bucket of an S3 endpoint. Paths are relative,
//! with `/` as separator.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use steadfast_flow::Env;
use steadfast_net::S3Credentials;

use super::Result;
use super::dir::{self, Dir};
use super::s3::{self, S3};

/// A place as a command names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlaceSpec {
    /// A directory, as an absolute path.
    Dir(std::path::PathBuf),
    /// A bucket and prefix.
    S3(S3Spec),
}

/// A prefix in a bucket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct S3Spec {
    /// The endpoint's URL.
    pub endpoint: String,
    /// The bucket.
    pub bucket: String,
    /// Prefix of every path; empty, or with `/` at its end.
    pub prefix: String,
    /// Region and keys.
    #[serde(flatten)]
    pub credentials: S3Credentials,
}

/// A place. Cloning shares it.
#[derive(Clone)]
pub enum Place {
    /// A directory.
    Dir(Dir),
    /// A prefix in a bucket.
    S3(S3),
}

impl Place {
    /// Opens a place.
    ///
    /// # Errors
    /// When the place is invalid.
    pub fn new(spec: &PlaceSpec, env: &Env) -> Result<Self> {
        Ok(match spec {
            PlaceSpec::Dir(path) => Self::Dir(Dir::new(path, env)?),
            PlaceSpec::S3(spec) => Self::S3(S3::new(spec, env)?),
        })
    }

    /// The place as text.
    pub fn shown(&self) -> String {
        match self {
            Self::Dir(dir) => dir.shown(),
            Self::S3(s3) => s3.shown(),
        }
    }

    /// Size of a file in bytes; `None` if it does not exist.
    ///
    /// # Errors
    /// When the place cannot be read.
    pub async fn size(&self, path: &str) -> Result<Option<u64>> {
        match self {
            Self::Dir(dir) => dir.size(path).await,
            Self::S3(s3) => s3.size(path).await,
        }
    }

    /// Reads exactly `len` bytes of a file.
    ///
    /// # Errors
    /// When the file is shorter or cannot be read.
    pub async fn read(&self, path: &str, offset: u64, len: u64) -> Result<Bytes> {
        let bytes = match self {
            Self::Dir(dir) => dir.read(path, offset, len).await?,
            Self::S3(s3) => s3.read(path, offset, len).await?,
        };
        if bytes.len() as u64 == len {
            return Ok(bytes);
        }
        Err(format!("{}/{path}: only {} of {len} bytes at {offset} exist", self.shown(), bytes.len()))
    }

    /// Begins a file; finishing it replaces a file of the same name.
    ///
    /// # Errors
    /// When the file cannot be created.
    pub async fn create(&self, path: &str) -> Result<Writer> {
        Ok(match self {
            Self::Dir(dir) => Writer::Dir(dir.create(path).await?),
            Self::S3(s3) => Writer::S3(s3.create(path)),
        })
    }

    /// Writes a small file.
    ///
    /// # Errors
    /// Those of writing.
    pub async fn put(&self, path: &str, bytes: &[u8]) -> Result<()> {
        let mut writer = self.create(path).await?;
        writer.write(bytes).await?;
        writer.finish().await
    }

    /// Removes a file; returns whether it existed.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub async fn remove(&self, path: &str) -> Result<bool> {
        match self {
            Self::Dir(dir) => dir.remove(path).await,
            Self::S3(s3) => s3.remove(path).await,
        }
    }

    /// Checks that the folder of an export holds no foreign files.
    ///
    /// # Errors
    /// When it does.
    pub async fn refuse_foreign(&self, name: &str) -> Result<()> {
        match self {
            Self::Dir(dir) => dir.refuse_foreign(name).await,
            // S3 has no folders; only files of the same names are replaced.
            Self::S3(_) => Ok(()),
        }
    }
}

/// A file being written. It exists, complete and durable, once [`Writer::finish`] has returned.
pub enum Writer {
    /// In a directory.
    Dir(dir::DirWriter),
    /// In a bucket.
    S3(s3::S3Writer),
}

impl Writer {
    /// Appends bytes.
    ///
    /// # Errors
    /// When they cannot be written.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<()> {
        match self {
            Self::Dir(writer) => writer.write(bytes).await,
            Self::S3(writer) => writer.write(bytes).await,
        }
    }

    /// Completes the file.
    ///
    /// # Errors
    /// When it cannot be made durable.
    pub async fn finish(self) -> Result<()> {
        match self {
            Self::Dir(writer) => writer.finish().await,
            Self::S3(writer) => writer.finish().await,
        }
    }
}
