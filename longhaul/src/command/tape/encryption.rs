//! Files that are encrypted before they go to a tape, and decrypted when they come from it.

use bytes::Bytes;
use clap::Args;
use proto::tape_encryption::{
    Cost, FileReader, FileSecrets, FileWriter, Header, KEY_LEN, PassphraseKey, RecordError,
    SALT_LEN, is_encrypted,
};
use zeroize::Zeroizing;

use crate::ciphers::new_aes_256_gcm;
use crate::failure::{Failure, OrFail as _, Outcome, print_error};
use crate::luks::{CostArgs, Key};
use crate::secret::{Secret, SecretArgs, keep};
use crate::tape_key::{derive, measured};

/// How a file is written.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Encrypted tapes")]
pub(super) struct EncryptArgs {
    #[command(flatten)]
    secret: SecretArgs,
    /// Encrypt what is written, with a pass-phrase that is asked for; one given by an option says so too
    #[arg(long)]
    encrypt: bool,
    #[command(flatten)]
    cost: CostArgs,
}

impl EncryptArgs {
    /// Whether what is written is to be encrypted.
    pub(super) fn is_wanted(&self) -> bool {
        self.encrypt || self.secret.is_given()
    }

    /// What encrypts, if that is wanted.
    pub(super) async fn encryption(&self) -> Outcome<Option<Encryption>> {
        if !self.is_wanted() {
            return match self.cost.is_given() {
                true => {
                    Err(Failure::usage("the cost of a pass-phrase is given, and no pass-phrase")
                        .hint("--encrypt asks for one"))
                }
                false => Ok(None),
            };
        }
        let budget = self.cost.budget()?;
        let secret = Key::new(self.secret.source(), "Pass-phrase of the tape").read().await?;
        Ok(Some(Encryption { secret, cost: measured(budget).await? }))
    }
}

/// A pass-phrase for files to be written, and what it is to cost.
pub(super) struct Encryption {
    secret: Secret,
    cost: Cost,
}

impl Encryption {
    /// Makes the keys of a file.
    pub(super) async fn new_file(&self) -> Outcome<NewFile> {
        let no_numbers = || "the system gives no random numbers".to_owned();
        let mut secrets =
            FileSecrets { salt: [0; SALT_LEN], file_key: Zeroizing::new([0; KEY_LEN]) };
        keep(&*secrets.file_key);
        getrandom::fill(&mut secrets.salt).or_fail(no_numbers)?;
        getrandom::fill(&mut *secrets.file_key).or_fail(no_numbers)?;
        let key = derive(&self.secret, secrets.salt, self.cost).await?;
        Ok(NewFile { secrets, key, cost: self.cost })
    }
}

/// The keys of a file that is written.
pub(super) struct NewFile {
    secrets: FileSecrets,
    key: PassphraseKey,
    cost: Cost,
}

impl NewFile {
    /// Begins it with blocks of this length; the first of them. With `fills` the last one is as long as the others.
    pub(super) fn begin(self, block: u32, fills: bool) -> Outcome<(FileWriter, Bytes)> {
        let Self { secrets, key, cost } = self;
        FileWriter::new(block, fills, cost, &secrets, &key, new_aes_256_gcm).map_err(|_| {
            Failure::usage(format!("a block of {block} bytes cannot be encrypted"))
                .hint("a block of an encrypted file has 256 bytes to 8M")
        })
    }
}

/// How files are read.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Encrypted tapes")]
pub(super) struct DecryptArgs {
    #[command(flatten)]
    secret: SecretArgs,
    /// Refuse a file that is not encrypted; a pass-phrase given by an option says so too
    #[arg(long)]
    encrypted: bool,
    /// Take a file as it is stored: if it is encrypted, its header and ciphertext
    #[arg(long, conflicts_with_all = ["encrypted", "passphrase_file", "passphrase_env", "key_file"])]
    raw: bool,
}

/// What decrypts the files of one tape.
pub(super) struct Decryption {
    args: DecryptArgs,
    /// What the pass-phrase is asked for.
    what: String,
    /// It, once it has opened a file.
    secret: Option<Secret>,
}

impl Decryption {
    pub(super) const fn new(args: DecryptArgs, what: String) -> Self {
        Self { args, what, secret: None }
    }

    /// A file whose blocks are to come.
    pub(super) const fn file(&mut self) -> FileContents<'_> {
        let kind = if self.args.raw { Kind::Stored } else { Kind::Unknown };
        FileContents { decryption: self, kind }
    }

    fn demands_encryption(&self) -> bool {
        self.args.encrypted || self.args.secret.is_given()
    }

    /// Opens a file. A wrong pass-phrase is asked for again where a person types it.
    async fn open(&mut self, header: &Header) -> Outcome<FileReader> {
        let open = async |secret: &Secret| {
            let key = derive(secret, header.salt, header.cost).await?;
            Ok::<_, Failure>(FileReader::new(header, &key, new_aes_256_gcm))
        };
        if let Some(secret) = &self.secret
            && let Ok(reader) = open(secret).await?
        {
            return Ok(reader);
        }
        let key = Key::asked(self.args.secret.source(), format!("pass-phrase of {}", self.what));
        let mut left = key.attempts();
        loop {
            let secret = key.read().await?;
            match open(&secret).await? {
                Ok(reader) => {
                    self.secret = Some(secret);
                    return Ok(reader);
                }
                Err(why) => {
                    left -= 1;
                    let failure = Failure::new("cannot decrypt the file").because(why);
                    if left == 0 {
                        return Err(failure);
                    }
                    print_error(&format_args!("longhaul: {failure}; try again"));
                }
            }
        }
    }
}

enum Kind {
    /// Its first block has not come.
    Unknown,
    /// It is taken as it is.
    Stored,
    Encrypted(FileReader),
}

/// A file on its way from a tape.
pub(super) struct FileContents<'d> {
    decryption: &'d mut Decryption,
    kind: Kind,
}

/// Why a file has no contents that can be trusted.
pub(super) enum Unusable {
    /// It is not what was written. What came before is.
    Changed(RecordError),
    /// It cannot be opened.
    Not(Failure),
}

impl From<RecordError> for Unusable {
    fn from(why: RecordError) -> Self {
        Self::Changed(why)
    }
}

impl From<Failure> for Unusable {
    fn from(failure: Failure) -> Self {
        Self::Not(failure)
    }
}

impl FileContents<'_> {
    /// Takes the next blocks, whole, and appends to `out` what is known of the contents. That is what was written, also where this
    /// fails.
    pub(super) async fn take(&mut self, data: Bytes, out: &mut Vec<Bytes>) -> Result<(), Unusable> {
        let data = if matches!(self.kind, Kind::Unknown) { self.begin(data).await? } else { data };
        match &mut self.kind {
            Kind::Encrypted(reader) => decrypted(out, |plain| reader.take(data, plain)),
            Kind::Unknown | Kind::Stored => {
                out.push(data);
                Ok(())
            }
        }
    }

    /// The file ends here.
    pub(super) fn finish(&mut self, out: &mut Vec<Bytes>) -> Result<(), Unusable> {
        match &mut self.kind {
            Kind::Encrypted(reader) => decrypted(out, |plain| reader.finish(plain)),
            Kind::Unknown if self.decryption.demands_encryption() => {
                Err(not_encrypted("it is empty").into())
            }
            Kind::Unknown | Kind::Stored => Ok(()),
        }
    }

    /// Finds out what it is by its first block. What follows on its header.
    async fn begin(&mut self, mut data: Bytes) -> Result<Bytes, Unusable> {
        if !is_encrypted(&data) {
            if self.decryption.demands_encryption() {
                return Err(not_encrypted("it does not begin with a header").into());
            }
            self.kind = Kind::Stored;
            return Ok(data);
        }
        let what = || "the file is encrypted, and cannot be opened".to_owned();
        let block = Header::block_length(&data).or_fail(what)? as usize;
        let header = data.split_to(block.min(data.len()));
        let header = Header::parse(&header).or_fail(what)?;
        self.kind = Kind::Encrypted(self.decryption.open(&header).await?);
        Ok(data)
    }
}

fn decrypted(
    out: &mut Vec<Bytes>,
    open: impl FnOnce(&mut Vec<u8>) -> Result<(), RecordError>,
) -> Result<(), Unusable> {
    let mut plain = Vec::new();
    let opened = open(&mut plain);
    out.push(plain.into());
    Ok(opened?)
}

fn not_encrypted(why: &str) -> Failure {
    Failure::new(format!("the file is not encrypted: {why}"))
        .because("a pass-phrase or --encrypted says that it is")
        .hint("if it was encrypted when it was written, it was replaced since, or the server sends something else")
}
