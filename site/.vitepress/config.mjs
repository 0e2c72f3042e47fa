// The site is the repository's own Markdown, with no copy of it. srcDir is the top of the checkout. What GitHub shows under a path, the
// site shows under a shorter one. Whatever would be lost on the way fails the build.
import { readFileSync, readdirSync, statSync } from 'node:fs'
import { dirname, join, posix, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import { defineConfig } from 'vitepress'
import { checkBuilt, slug } from './check.mjs'

const here = dirname(fileURLToPath(import.meta.url))
const top = resolve(here, '../..')
// Where a file of the repository is read that is no page of the site.
const repository = readFileSync(join(top, 'charts/singletonjob/Chart.yaml'), 'utf8').match(/^home: (\S+)$/m)[1]

// --- pages ------------------------------------------------------------------------------------------------------

const markdown = (dir) => readdirSync(join(top, dir)).filter((name) => name.endsWith('.md')).map((name) => posix.join(dir, name))
const sources = ['.', 'docs', 'docs/decisions'].flatMap(markdown)
const page = (source) => source === 'README.md' ? 'index.md' : source === 'docs/README.md' ? 'documents.md' : source.startsWith('docs/') ? source.slice('docs/'.length) : source.toLowerCase()
const rewrites = Object.fromEntries(sources.map((source) => [source, page(source)]))
const sourceOf = Object.fromEntries(sources.map((source) => [page(source), source]))
if (Object.keys(sourceOf).length !== sources.length) throw new Error('two files would be one page: ' + sources.join(' '))
// Samples and test data have a Markdown of their own.
const folders = (dir, ...kept) => readdirSync(join(top, dir), { withFileTypes: true }).filter((e) => e.isDirectory() && !kept.includes(e.name)).map((e) => posix.join(dir, e.name, '**'))
const elsewhere = [...folders('.', 'docs'), ...folders('docs', 'decisions')]

// --- sidebar ----------------------------------------------------------------------------------------------------

// A page is called what its first heading says, up to the first comma or colon; a number stays, and [page, text] says it otherwise.
const title = (source) => {
  const heading = readFileSync(join(top, source), 'utf8').match(/^# (.*)$/m)
  if (!heading) throw new Error(`${source} has no heading for the sidebar`)
  const text = heading[1].replaceAll('`', '')
  return /^\d+:/.test(text) ? text : text.split(/[,:]/)[0]
}
const item = (entry) => {
  if (entry.items) return { collapsed: true, ...entry, link: entry.link && '/' + entry.link, items: entry.items.map(item) }
  const [path, text] = [entry].flat()
  const source = sourceOf[path]
  if (!source) throw new Error(`the sidebar has ${path}, which is no page`)
  return { text: text ?? title(source), link: '/' + path }
}
const group = (text, ...entries) => ({ text, items: entries.map(item) })

const sidebar = [
  group('Start', ['index.md', 'Overview'], ['documents.md', 'Questions, and all documents'], ['guide.md', 'Do you need one, and which?'], 'from-deployment.md', 'from-statefulset.md', 'from-cronjob.md', 'from-job.md', ['from-election.md', 'From leader election, locks'], 'differences.md', 'samples.md', 'limits.md', ['workloads.md', "Somebody else's workload"]),
  group('Running', 'rollout.md', 'runs.md', 'hooks.md', 'probes.md', 'ready.md', 'service.md', 'volumes.md', 'entrypoint.md', 'week.md'),
  group('Safety', 'guarantees.md', 'timing.md',
    { text: 'Which fence for my sink?', link: 'fencing.md', collapsed: false, items: [['fencing-sql.md', 'SQL'], ['fencing-http.md', 'HTTP'],
      ['fencing-etcd.md', 'etcd'], ['fencing-redis.md', 'Redis, Valkey'], ['fencing-nats.md', 'NATS'], ['fencing-s3.md', 'S3'], ['fencing-kubernetes.md', 'Kubernetes']] },
    'tenure.md', 'guard.md', ['security.md', 'Threat model'], 'faults.md', 'claims.md', 'model.md', 'torture.md', 'measured.md'),
  group('Operations', 'troubleshooting.md', ['restore.md', 'Restore, quorum, another cluster'], 'upgrade.md', ['api.md', 'API reference'], 'kubectl.md', 'status.md', ['monitoring.md', 'Metrics, alerts, dashboard'], 'sizing.md', 'namespaced.md', 'network.md', 'flow-control.md', 'api-trouble.md',
    'uninstall.md', 'release.md', 'changelog.md'),
  group('Design', 'architecture.md', 'contributing.md',
    { text: 'Decisions', items: Object.keys(sourceOf).filter((path) => path.startsWith('decisions/')).sort() }),
]

// A page that nobody finds is as good as none.
const linked = (items) => items.flatMap(({ link, items }) => [link, ...linked(items ?? [])]).filter(Boolean)
const times = (path) => linked(sidebar).filter((link) => link === '/' + path).length
const lost = Object.keys(sourceOf).filter((path) => times(path) !== 1)
if (lost.length) throw new Error('not once in the sidebar of site/.vitepress/config.mjs: ' + lost.map((path) => sourceOf[path]).join(', '))

// --- Markdown ---------------------------------------------------------------------------------------------------

// A relative link leads to a page if there is one, and else to the repository.
const link = (source, href) => {
  if (/^([a-z]+:|#|\/)/.test(href)) return href
  const [path, hash] = decodeURI(href).split(/(?=#)/)
  const target = posix.join(posix.dirname(source), path).replace(/\/$/, '')
  if (rewrites[target]) return `/${rewrites[target]}${hash ?? ''}`
  const there = statSync(join(top, target), { throwIfNoEntry: false })
  if (!there) throw new Error(`${source} links to ${href}, which is not there`)
  return encodeURI(`${repository}/${there.isDirectory() ? 'tree' : 'blob'}/main/${target}`) + (hash ?? '')
}

// GitHub draws Mermaid; here a drawing made for it stands in its place, which spares each reader a library of megabytes.
// The drawing has in its <desc> the text that it shows, so that none stays behind when the text changes.
const drawings = new Map(readdirSync(join(here, '../diagrams')).map((name) => {
  const svg = readFileSync(join(here, '../diagrams', name), 'utf8')
  const [desc, text] = svg.match(/<desc><!\[CDATA\[\n(.*?)\]\]><\/desc>\n/s) ?? []
  if (!desc) throw new Error(`site/diagrams/${name} does not say what it shows`)
  return [text, svg.replace(desc, '')]
}))
const drawing = (source, text) => {
  const svg = drawings.get(text)
  if (!svg) throw new Error(`${source} has a diagram that no file of site/diagrams draws as it is now:\n${text}`)
  drawn.add(text)
  return `<div class="drawing" tabindex="0" v-pre>${svg}</div>\n`
}
const drawn = new Set()

const rules = (md) => {
  const source = (env) => sourceOf[env.relativePath] ?? env.relativePath
  md.core.ruler.push('repository-links', ({ tokens, env }) => {
    for (const token of tokens.flatMap((t) => t.children ?? [])) {
      if (token.type === 'link_open') token.attrSet('href', link(source(env), token.attrGet('href')))
    }
  })
  // The theme dresses fences alone: a block that is code by its indentation would run out of the page.
  md.core.ruler.push('indented-code', ({ tokens }) => {
    for (const token of tokens) if (token.type === 'code_block') Object.assign(token, { type: 'fence', tag: 'code', info: '', markup: '```' })
  })
  const { fence, text } = md.renderer.rules
  md.renderer.rules.fence = (tokens, i, options, env, self) =>
    tokens[i].info.trim() === 'mermaid' ? drawing(source(env), tokens[i].content) : fence(tokens, i, options, env, self)
  // To Vue two braces are an expression; it sees none in entities. A number stays on the line of its unit.
  md.renderer.rules.text = (...args) => text(...args).replaceAll('{{', '&#123;&#123;').replace(/(\d) (?=(?:%|[mµn]?s|min|h|[kKMG]i?B)(?!\p{L}))/gu, '$1\u00a0')
}

// The pages lie above node_modules, where nothing would find the Vue that they are compiled to.
const vueOfPages = {
  name: 'vue-of-pages',
  enforce: 'pre',
  resolveId(id, importer) {
    if (/^vue(\/|$)/.test(id) && importer?.split('?')[0].endsWith('.md')) return this.resolve(id, join(here, 'config.mjs'), { skipSelf: true })
  },
}

// ----------------------------------------------------------------------------------------------------------------

export default defineConfig({
  title: 'SingletonJob',
  description: 'Exactly one copy acts: a Kubernetes workload with warm standbys and fencing tokens',
  lang: 'en',
  srcDir: top,
  srcExclude: elsewhere,
  outDir: join(top, 'dist/site'),
  rewrites,
  markdown: {
    html: false, // <angles> are text, as in `kubectl` usage, and no elements of Vue
    anchor: { slugify: slug },
    config: rules,
  },
  themeConfig: {
    nav: [{ text: 'Repository', link: repository }],
    sidebar,
    outline: [2, 3],
    search: { provider: 'local' },
    editLink: { pattern: `${repository}/blob/main/:path`, text: 'This page in the repository' },
  },
  vite: { plugins: [vueOfPages] },
  buildEnd: ({ outDir, site }) => {
    if (drawn.size !== drawings.size) throw new Error('site/diagrams draws what no page shows')
    checkBuilt(outDir, site.base)
  },
})
