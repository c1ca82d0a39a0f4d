// The npm package: create, command, stream, stdin, terminal, files, watch, list, kill.
import assert from 'node:assert/strict'
import { CommandExitError, FileNotFoundError, FilesystemEventType, Sandbox } from 'e2b'

const sandbox = await Sandbox.create('base', { timeoutMs: 120_000, metadata: { of: 'npm' } })
const done = await sandbox.commands.run('echo out; echo err >&2; id -un')
assert.deepEqual([done.stdout, done.stderr, done.exitCode], ['out\nuser\n', 'err\n', 0])
await assert.rejects(sandbox.commands.run('exit 3'), (error) => error instanceof CommandExitError && error.exitCode === 3)

const pieces = []
await sandbox.commands.run('for i in 1 2 3; do echo $i; sleep 0.1; done', { onStdout: (data) => pieces.push(data) })
assert.equal(pieces.join(''), '1\n2\n3\n')
assert.ok(pieces.length > 1, 'the output came in pieces')

const started = await sandbox.commands.run('echo first; sleep 0.3; echo second', { background: true })
await started.disconnect()
assert.equal((await (await sandbox.commands.connect(started.pid)).wait()).stdout, 'first\nsecond\n')

const reading = await sandbox.commands.run('head -n 1', { background: true, stdin: true })
await sandbox.commands.sendStdin(reading.pid, 'line\n')
assert.equal((await reading.wait()).stdout, 'line\n')

let shown = ''
const terminal = await sandbox.pty.create({ cols: 97, rows: 31, onData: (data) => (shown += new TextDecoder().decode(data)) })
await sandbox.pty.sendInput(terminal.pid, new TextEncoder().encode('stty size; exit\n'))
await terminal.wait()
assert.match(shown, /31 97/)

await sandbox.files.write('dir/note', 'text')
assert.equal(await sandbox.files.read('dir/note'), 'text')
const large = new Uint8Array(3_000_000).fill(7)
await sandbox.files.write('large', new Blob([large]))
assert.deepEqual(new Uint8Array(await sandbox.files.read('large', { format: 'bytes' })), large)
assert.deepEqual((await sandbox.files.list('dir')).map((entry) => entry.path), ['/home/user/dir/note'])
await assert.rejects(sandbox.files.read('missing'), FileNotFoundError)

const seen = []
const watch = await sandbox.files.watchDir('dir', (event) => seen.push(event))
await sandbox.files.write('dir/note', 'more')
for (let i = 0; i < 600 && !seen.some((event) => event.type === FilesystemEventType.WRITE); i++) await new Promise((go) => setTimeout(go, 50))
assert.ok(seen.some((event) => event.type === FilesystemEventType.WRITE && event.name === 'note'), JSON.stringify(seen))
await watch.stop()

const listed = await Sandbox.list({ query: { metadata: { of: 'npm' } } }).nextItems()
assert.deepEqual(listed.map((one) => one.sandboxId), [sandbox.sandboxId])
assert.equal(await sandbox.isRunning(), true)
assert.equal(await sandbox.kill(), true)
assert.equal(await sandbox.isRunning(), false)
assert.equal(await Sandbox.kill(sandbox.sandboxId), false)
